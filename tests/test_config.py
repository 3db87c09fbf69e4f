"""Every setting: how its text is read, who wins, and what is said of mistakes."""

from collections.abc import Callable
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agent import config
from agent.config import Config, UsageError, load, option, settings_of, variable

OFF = {"api": "off"}
COMMANDS = ("run", "scan", "record", "clean", "restore", "journal")
MISSING_NODE = (
    "--node (NODELEAK_NODE): missing: "
    "say the name of this node's Node object, or --api=off to do without the API server"
)


def complaints(given: dict[str, Any], environment: dict[str, str] | None = None, command: str = "scan") -> list[str]:
    with pytest.raises(UsageError) as raised:
        load(command, given, environment or {})
    return str(raised.value).splitlines()


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("90s", timedelta(seconds=90)),
        ("5m", timedelta(minutes=5)),
        ("1h30m", timedelta(minutes=90)),
        ("250ms", timedelta(milliseconds=250)),
        ("1.5h", timedelta(minutes=90)),
        ("2d", timedelta(days=2)),
        ("0s", timedelta(0)),
    ],
)
def test_a_span_has_its_unit(text: str, duration: timedelta) -> None:
    assert config.duration(text) == duration


@pytest.mark.parametrize(
    "text", ["", "5", "0", "5 m", " 5m", "5m ", "-5m", "m", "5x", "5mm", "1e3s", "five minutes", "5m3", "1.2.3s", "inf"]
)
def test_a_bare_number_is_not_a_span(text: str) -> None:
    with pytest.raises(ValueError, match="say a span with its unit, such as 90s, 5m or 1h30m"):
        config.duration(text)


def test_a_span_that_no_node_lives_is_refused() -> None:
    with pytest.raises(ValueError, match="longer than any node lives"):
        config.duration("9" * 400 + "d")


@pytest.mark.parametrize(
    ("parse", "text", "why"),
    [
        (config.short_duration, "0s", "from 1ms to 1h"),
        (config.short_duration, "0.0001ms", "from 1ms to 1h"),
        (config.short_duration, "61m", "from 1ms to 1h"),
        (config.short_duration, "999999999d", "from 1ms to 1h"),
        (config.path, "var/lib", "an absolute path"),
        (config.path, "", "an absolute path"),
        *((config.path_or_off, text, "an absolute path") for text in ("", "no", "OFF", "device-plugins")),
        (config.network_name, "", "letters, digits"),
        (config.network_name, "..", "letters, digits"),
        (config.network_name, "../kubenet", "letters, digits"),
        (config.network_name, "kubenet/x", "letters, digits"),
        (config.network_name, "kubenet\n", "letters, digits"),
        (config.node_name, "Worker-1", "lower-case"),
        (config.node_name, "worker 1", "lower-case"),
        (config.node_name, "-worker", "lower-case"),
        (config.node_name, "worker=1", "lower-case"),
        (config.node_name, "w" * 254, "lower-case"),
        *(
            (config.percentage, text, "a percentage from 0% to 100%, with its sign")
            for text in (
                "50",
                "0.5",
                "101%",
                "100.1%",
                "-5%",
                "50 %",
                " 50%",
                "50%%",
                "%",
                "",
                "1e1%",
                "fifty%",
                "1000%",
            )
        ),
        *(
            (config.positive, text, "a whole number of 1 or more")
            for text in ("0", "-1", "01", "1.0", "ten", "", " 1", "1 ", "1_000", "9999999999")
        ),
        (config.duration_between("2s", "1m"), "1s", "from 2s to 1m"),
        (config.duration_between("2s", "1m"), "61s", "from 2s to 1m"),
        (config.one_of("on", "off"), "yes", "say one of: on, off"),
        (config.one_of("on", "off"), "", "say one of: on, off"),
        (config.listen, "9747", "say HOST:PORT"),
        (config.listen, ":65536", "say HOST:PORT"),
        (config.listen, ":", "say HOST:PORT"),
        (config.listen, "::1:9747", "say HOST:PORT"),
        (config.listen, "[banana]:9747", "say HOST:PORT"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_remedy(parse: Callable[[str], Any], text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse(text)


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (config.short_duration, "1ms", timedelta(milliseconds=1)),
        (config.short_duration, "1h", timedelta(hours=1)),
        (config.path, "/var/lib", Path("/var/lib")),
        (config.optional_path, "", None),
        (config.path_or_off, "off", None),
        (config.path_or_off, "/var/lib/kubelet/device-plugins", Path("/var/lib/kubelet/device-plugins")),
        (config.optional_path, "kubeconfig", Path("kubeconfig")),
        (config.network_name, "k8s-pod-network.1_a", "k8s-pod-network.1_a"),
        (config.node_name, "", ""),
        (config.node_name, "10.12.97.31", "10.12.97.31"),
        (config.node_name, "w" * 253, "w" * 253),
        (config.percentage, "50%", 0.5),
        (config.percentage, "0%", 0.0),
        (config.percentage, "100%", 1.0),
        (config.percentage, "12.5%", 0.125),
        (config.positive, "1", 1),
        (config.positive, "999999999", 999_999_999),
        (config.duration_between("2s", "1m"), "2s", timedelta(seconds=2)),
        (config.duration_between("2s", "1m"), "1m", timedelta(minutes=1)),
        (config.listen, ":9747", ("", 9747)),
        (config.listen, "127.0.0.1:0", ("127.0.0.1", 0)),
        (config.listen, "[::1]:9747", ("::1", 9747)),
        (config.listen, "localhost:65535", ("localhost", 65535)),
    ],
)
def test_what_is_meant_is_read(parse: Callable[[str], Any], text: str, value: object) -> None:
    assert parse(text) == value


# Who wins


def test_without_anything_the_defaults_hold() -> None:
    settings = load("run", OFF, {})
    assert settings.network == ("kubenet",)
    assert settings.cni_networks_dir == Path("/var/lib/cni/networks")
    assert settings.checkpoint_dir == (Path("/var/lib/dockershim/sandbox"), Path("/var/lib/cri-dockerd/sandbox"))
    assert settings.device_plugins_dir == Path("/var/lib/kubelet/device-plugins")
    assert (settings.grace, settings.interval) == (timedelta(minutes=5), timedelta(seconds=15))
    assert (settings.listen, settings.node, settings.kubeconfig, settings.docker_host) == (("", 9747), "", None, "")


def test_nothing_is_released_unless_somebody_says_so() -> None:
    settings = load("run", OFF, {})
    assert settings.cleanup == "off"
    assert settings.cleanup_network == ("kubenet",)
    assert (settings.settle, settings.max_share) == (timedelta(minutes=5), 0.5)
    assert (settings.max_per_sync, settings.max_per_hour) == (10, 60)
    assert settings.lock_timeout == timedelta(seconds=5)
    assert settings.state_dir == Path("/var/lib/nodeleak")


@pytest.mark.parametrize("text", ["on", "yes", "true", "apply", "auto ", "Auto", "clean"])
def test_cleanup_is_turned_on_by_one_word_only(text: str) -> None:
    assert complaints({**OFF, "cleanup": text}, command="run") == [
        f"--cleanup: {text!r}: say one of: off, dry-run, auto"
    ]


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("NODELEAK_CLEANUP", "auto", "cleanup", "auto"),
        ("NODELEAK_CLEANUP_NETWORK", "kubenet,storage", "cleanup_network", ("kubenet", "storage")),
        ("NODELEAK_SETTLE", "0s", "settle", timedelta(0)),
        ("NODELEAK_MAX_SHARE", "100%", "max_share", 1.0),
        ("NODELEAK_MAX_PER_SYNC", "1", "max_per_sync", 1),
        ("NODELEAK_MAX_PER_HOUR", "7", "max_per_hour", 7),
        ("NODELEAK_LOCK_TIMEOUT", "250ms", "lock_timeout", timedelta(milliseconds=250)),
        ("NODELEAK_STATE_DIR", "/state", "state_dir", Path("/state")),
        ("NODELEAK_CONFIRM_AFTER", "1m", "confirm_after", timedelta(minutes=1)),
    ],
)
def test_what_is_released_can_be_bounded_from_the_environment(
    name: str, value: str, field: str, expected: object
) -> None:
    assert getattr(load("run", OFF, {name: value}), field) == expected


@pytest.mark.parametrize("name", ["NODELEAK_APPLY", "NODELEAK_IP", "NODELEAK_MAX", "NODELEAK_DRY_RUN", "NODELEAK_LAST"])
def test_no_environment_can_consent_to_a_release(name: str) -> None:
    (complaint,) = complaints(OFF, {name: "true"}, command="clean")
    assert complaint.startswith(f"{name}: there is no such setting")


@pytest.mark.parametrize(("command", "seconds"), [("run", 30), ("scan", 0.005), ("record", 0.005), ("clean", 3)])
def test_a_daemon_confirms_by_age_and_a_scan_by_a_second_look(command: str, seconds: float) -> None:
    assert load(command, OFF, {}).confirm_after == timedelta(seconds=seconds)


def test_an_option_wins_over_the_environment_and_that_over_the_default() -> None:
    environment = {"NODELEAK_GRACE": "7m", "NODELEAK_API": "off"}
    assert load("scan", {"grace": None}, environment).grace == timedelta(minutes=7)
    assert load("scan", {"grace": "9m"}, environment).grace == timedelta(minutes=9)
    assert load("scan", {"grace": "0s"}, environment).grace == timedelta(0)


def test_an_empty_variable_is_one_that_is_not_set() -> None:
    assert load("scan", OFF, {"NODELEAK_GRACE": ""}).grace == timedelta(minutes=5)


@pytest.mark.parametrize(
    "given", [["kubenet", "storage"], ["kubenet,storage"], "kubenet, storage", ["kubenet", "storage,kubenet"]]
)
def test_a_list_is_given_again_or_with_commas_and_names_each_once(given: Any) -> None:
    assert load("scan", {**OFF, "network": given}, {}).network == ("kubenet", "storage")


def test_a_list_in_the_environment_has_commas() -> None:
    assert load("scan", OFF, {"NODELEAK_NETWORK": "kubenet,storage"}).network == ("kubenet", "storage")


@pytest.mark.parametrize("command", ["run", "scan", "record", "clean"])
def test_device_plugins_can_be_left_alone(command: str) -> None:
    assert load(command, OFF, {"NODELEAK_DEVICE_PLUGINS_DIR": "off"}).device_plugins_dir is None
    assert load(command, {**OFF, "device_plugins_dir": "/k3s"}, {}).device_plugins_dir == Path("/k3s")


def test_of_an_option_given_twice_the_last_counts() -> None:
    assert load("scan", {"api": ["on", "off"]}, {}).api == "off"


# Mistakes


def test_all_mistakes_are_told_at_once_each_with_its_setting_and_its_value() -> None:
    given = {"grace": "5", "network": ["kubenet", "../etc"], "proc": "proc"}
    environment = {"NODELEAK_LISTEN": "9747", "NODELEAK_INTERVALL": "15s", "NODELEAK_GRACE": "ignored"}
    assert complaints(given, environment) == [
        "NODELEAK_INTERVALL: there is no such setting; did you mean NODELEAK_INTERVAL?",
        "--network: 'kubenet,../etc': a CNI network's name has letters, digits, dots, dashes and underscores only",
        "--proc: 'proc': say an absolute path",
        "--grace: '5': say a span with its unit, such as 90s, 5m or 1h30m",
        "NODELEAK_LISTEN: '9747': say HOST:PORT, such as :9747, 127.0.0.1:9747 or [::1]:9747",
        MISSING_NODE,
    ]


@pytest.mark.parametrize("command", ["run", "clean"])
def test_that_nothing_which_is_looked_at_may_be_cleaned_is_a_mistake(command: str) -> None:
    assert complaints({**OFF, "cleanup_network": ["storage"]}, command=command) == [
        "--cleanup-network: 'storage': not looked at: add --network=storage"
    ]
    both: dict[str, Any] = {**OFF, "cleanup_network": ["storage"], "network": ["kubenet,storage"]}
    assert load(command, both, {}).cleanup_network == ("storage",)


def test_a_default_that_is_not_looked_at_is_no_mistake() -> None:
    assert load("clean", {**OFF, "network": ["storage"]}, {}).cleanup_network == ("kubenet",)
    assert load("scan", OFF, {"NODELEAK_CLEANUP_NETWORK": "storage"}).network == ("kubenet",)


def test_yes_is_not_on() -> None:
    assert complaints({"api": "yes"}) == ["--api: 'yes': say one of: on, off"]


def test_a_node_has_no_default_name() -> None:
    assert complaints({}) == [MISSING_NODE]
    assert load("scan", {"node": "worker-1"}, {}).node == "worker-1"
    assert load("scan", {}, {"NODELEAK_NODE": "worker-1"}).node == "worker-1"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_node_is_needed_by_those_who_ask_the_api_server(command: str) -> None:
    if "node" in settings_of(command):
        assert complaints({}, command=command) == [MISSING_NODE]
    else:
        assert command in {"restore", "journal"}
        assert load(command, {}, {}).node == ""


def test_a_command_has_the_settings_that_it_uses() -> None:
    assert set(settings_of("journal")) == {"state_dir"}
    assert set(settings_of("restore")) == {"state_dir", "lock_timeout", "cni_networks_dir", "cni_cache_dir"}
    bounds = {"cleanup_network", "settle", "max_share", "lock_timeout"}
    assert set(settings_of("clean")) - set(settings_of("scan")) == bounds
    assert set(settings_of("scan")) - set(settings_of("clean")) == set()
    assert all(
        {"device_plugins_dir", "state_dir"} <= set(settings_of(one)) for one in ("run", "scan", "record", "clean")
    )
    assert {"cleanup", "max_per_sync", "max_per_hour"} <= set(settings_of("run")) - set(settings_of("clean"))


def test_a_mistake_in_what_another_command_uses_is_told_too() -> None:
    """A manifest's environment is one for all commands, and half of it wrong must not wait for the daemon."""
    (complaint,) = complaints({}, {"NODELEAK_MAX_SHARE": "50"}, command="journal")
    assert complaint == "NODELEAK_MAX_SHARE: '50': say a percentage from 0% to 100%, with its sign"


@pytest.mark.parametrize(
    "name", ["NODELEAK_", "NODELEAK_X", "NODELEAK_GRACE_PERIOD", "NODELEAK_PORT", "NODELEAK_LISTEN_PORT"]
)
def test_a_variable_with_our_prefix_that_is_none_of_ours_is_a_mistake(name: str) -> None:
    (complaint,) = complaints(OFF, {name: "5m"})
    assert complaint.startswith(f"{name}: there is no such setting; did you mean NODELEAK_")


@pytest.mark.parametrize(
    "environment",
    [
        {"PATH": "/bin", "NODE_NAME": "x", "nodeleak_grace": "x", "MY_NODELEAK_GRACE": "x"},
        {
            "NODELEAK_SERVICE_HOST": "10.0.0.1",
            "NODELEAK_SERVICE_PORT": "9747",
            "NODELEAK_SERVICE_PORT_METRICS": "9747",
            "NODELEAK_PORT": "tcp://10.0.0.1:9747",
            "NODELEAK_PORT_9747_TCP": "tcp://10.0.0.1:9747",
            "NODELEAK_PORT_9747_TCP_ADDR": "10.0.0.1",
        },
        {
            "NODELEAK_METRICS_SERVICE_HOST": "10.0.0.1",
            "NODELEAK_METRICS_SERVICE_PORT_HTTP": "9747",
            "NODELEAK_METRICS_PORT": "tcp://10.0.0.1:9747",
            "NODELEAK_METRICS_PORT_9747_TCP_PROTO": "tcp",
        },
    ],
    ids=["others'", "a Service named nodeleak", "a Service named nodeleak-metrics"],
)
def test_what_others_put_into_the_environment_is_no_mistake(environment: dict[str, str]) -> None:
    assert load("scan", OFF, environment).grace == timedelta(minutes=5)


# The record explains itself


@pytest.mark.parametrize("command", COMMANDS)
def test_every_setting_can_be_an_option_and_a_variable(command: str) -> None:
    for name, setting in settings_of(command).items():
        assert option(name) == f"--{name.replace('_', '-')}"
        assert variable(name) == f"NODELEAK_{name.upper()}"
        assert setting.help
        assert setting.metavar


def test_every_setting_belongs_to_some_command() -> None:
    assert {name for command in COMMANDS for name in settings_of(command)} == {one.name for one in fields(Config)}


def test_every_default_is_a_text_that_would_be_accepted() -> None:
    for name, setting in settings_of("run").items():
        text = config.DEFAULT_CONFIRM_AFTER["run"] if name == "confirm_after" else setting.default
        silent, said = {"node": "worker-1"}, {"node": "worker-1", **({name: text} if name != "node" else {})}
        assert load("run", said, {}) == load("run", silent, {})


def test_a_condition_on_the_node_needs_the_api_server() -> None:
    assert complaints({**OFF, "node_condition": "on"}, command="run") == [
        "--node-condition: 'on': --api=off does without the API server: say one of the two"
    ]
    assert load("run", {"node": "n", "node_condition": "on"}, {}).node_condition == "on"
