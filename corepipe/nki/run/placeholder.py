"""Times of a run before its queues are simulated."""

from corepipe.nki.core.recorder import Recorder
from corepipe.nki.timing.times import Memory, Times, Traffic


def timed(recorder: Recorder) -> Times:
    """Returns the times of a run."""
    try:
        from corepipe.nki.timing.timed import timed as real  # type: ignore
    except ImportError:
        return Times(0.0, 0.0, 0.0, "", {}, {}, Traffic(0, 0, 0, 0), Memory(0, 0, 0, 0), "")
    return real(recorder)
