"""What is reused of earlier prompts, and that replies are those of a cold run. The times are measured by `reuse.py`, on a quiet machine."""

from reuse import SCENARIOS, measure


def test_reuse():
    rows, faults = measure(1)
    assert len(rows) == len(SCENARIOS)
    assert not [fault for fault in faults if "decode step" not in fault], faults
