"""Files that are shipped with the code."""

from foretell.services.tagger.models import folder_of
from foretell.services.tagger.reading import WEIGHTS


def test_weights_name_no_folder_of_the_machine_that_trained_them() -> None:
    """The exporter records for each operator the source file and line that it comes from."""
    weights = (folder_of("shipped") / WEIGHTS).read_bytes()
    assert b'.py", line ' not in weights
