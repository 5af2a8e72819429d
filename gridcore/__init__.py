"""GridCore: a workload scheduler for local AI computers."""

__version__ = "0.1.0"
