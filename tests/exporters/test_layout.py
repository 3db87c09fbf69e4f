"""Where lines of prose are broken."""

from agent.exporters.text.layout import fill


def test_what_people_search_for_stays_on_one_line() -> None:
    for words in ("no space left on device", "`df -h /var/lib/kubelet`", "2026-03-26 19:59:"):
        for length in range(60, 100):
            lines = fill(f"{'x' * length} {words} and then more")
            assert any(words in line for line in lines), (words, length)
            assert max(map(len, lines)) <= 100
