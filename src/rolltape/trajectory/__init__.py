"""Trajectories: reading them as they were recorded."""
