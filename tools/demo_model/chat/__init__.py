"""Seeded generator of synthetic chat and tool use for the demo model."""
