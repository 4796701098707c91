"""Which refusal a name gets that is not served."""

import pytest

from interlace.core.errors import Reason, ServeError
from interlace.server.model_table import ModelTable


def test_a_model_that_this_node_is_not_told_to_serve_is_not_unknown() -> None:
    table = ModelTable()
    table.at_hand = {"m"}
    for name, reason in (("m", Reason.NOT_READY), ("other", Reason.UNKNOWN_MODEL)):
        with pytest.raises(ServeError) as found:
            table.resolve(name)
        assert found.value.reason is reason
