"""Rolltape makes agent rollouts durable.

Kill any part of a rollout at any moment, and it carries on from the last finished step.
"""

from rolltape.errors import RolltapeError

__version__ = "0.1.0"

__all__ = ["RolltapeError"]
