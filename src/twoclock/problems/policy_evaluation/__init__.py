"""Policy evaluation, linear and nonlinear, and its known cases."""
