"""From one lane's step, traced by JAX, to C that walks many lanes: for a CPU, several side by side, or for a GPU."""
