from twoclock.cli import program

program()
