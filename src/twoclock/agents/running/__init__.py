"""How agents run: environments of any kind, one seed on its way, and many of them in processes or on Ray."""
