"""Models that packages ship, as losses to plan; each is made only if its package is there."""

from benchmarks.packages import graphs, language, probability, science, vision
from benchmarks.packages.record import PACKAGES, Entry, Problem

__all__ = ["PACKAGES", "Entry", "Problem", "graphs", "language", "probability", "science", "vision"]
