"""Asgar, Nguyen and Katti (2025): what of their planner no command of Kairos uses."""
