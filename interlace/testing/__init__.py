"""The laws that every system of the catalog keeps, to be run on a system of one's own.

In a test file::

    from interlace.testing import laws_of
    from my_dispatcher import SYSTEM

    @pytest.mark.parametrize("law", laws_of(SYSTEM), ids=str)
    def test_laws(law):
        law(SYSTEM)

or all at once with ``check_system(SYSTEM)``. A law draws its cases with Hypothesis (``pip install
'interlace[testing]'``) and fails with an ``AssertionError`` on the smallest case that breaks it.
"""

from interlace.core.user_errors import remedy

try:
    from interlace.testing.law import Law, check_system, laws_of
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(remedy(error) or str(error), name=error.name) from error

__all__ = ["Law", "check_system", "laws_of"]
