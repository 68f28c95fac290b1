"""The linear-quadratic regulator without a model: operators, guard, known plants."""
