"""docs/reference/commands.md has every command and option, as the help prints them."""

from tests.documents.commands import PAGE, page


def test_the_committed_page_is_the_generated_one():
    assert PAGE.read_text() == page(), "run `make generate`"


def test_an_option_and_a_command_that_the_help_shows_are_on_the_page():
    assert "| `--max-gpus N or TYPE=N` | Most GPUs of the plan" in page()
    assert "\n## heddle checkpoint verify\n" in page()
    assert "forkserver" not in page()  # hidden: only an agent starts it
