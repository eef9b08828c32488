import pytest

from reliability.formats import Worlds


@pytest.fixture(scope="session")
def worlds(tmp_path_factory):
    """Folders with files of every format, each made when it is first wanted."""
    return Worlds(tmp_path_factory.mktemp("worlds"))
