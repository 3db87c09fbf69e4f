"""Settings: how text is read, precedence, and messages for mistakes."""

from collections.abc import Callable
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agent import config
from agent.config import Config, UsageError, load, option, settings_of, variable

OFF = {"api": "off"}
COMMANDS = ("run", "scan", "status", "record", "clean", "restore", "resume", "journal")
MISSING_NODE = (
    "--node (NODELEAK_NODE) is not set: "
    "give the name of this node's Node object, or --api=off to run without the API server"
)


def mistakes(given: dict[str, Any], environment: dict[str, str] | None = None, command: str = "scan") -> list[str]:
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
def test_a_duration_has_a_unit(text: str, duration: timedelta) -> None:
    assert config.duration(text) == duration


@pytest.mark.parametrize(
    "text", ["", "5", "0", "5 m", " 5m", "5m ", "-5m", "m", "5x", "5mm", "1e3s", "five minutes", "5m3", "1.2.3s", "inf"]
)
def test_a_number_without_unit_is_not_a_duration(text: str) -> None:
    with pytest.raises(ValueError, match="expected a duration such as 90s or 5m"):
        config.duration(text)


def test_a_duration_beyond_timedelta_is_rejected() -> None:
    with pytest.raises(ValueError, match="duration is too long"):
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
            (config.percentage, text, "expected a percentage from 0% to 100%, such as 50%")
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
        (config.one_of("on", "off"), "yes", "expected one of: on, off"),
        (config.one_of("on", "off"), "", "expected one of: on, off"),
        (config.listen, "9747", "expected HOST:PORT"),
        (config.listen, ":65536", "expected HOST:PORT"),
        (config.listen, ":", "expected HOST:PORT"),
        (config.listen, "::1:9747", "expected HOST:PORT"),
        (config.listen, "[banana]:9747", "expected HOST:PORT"),
    ],
)
def test_invalid_text_is_rejected_with_what_was_expected(parse: Callable[[str], Any], text: str, why: str) -> None:
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
def test_valid_text_is_parsed(parse: Callable[[str], Any], text: str, value: object) -> None:
    assert parse(text) == value


# Precedence


def test_defaults() -> None:
    settings = load("run", OFF, {})
    assert settings.network == ("auto",)
    assert settings.cni_networks_dir == Path("/var/lib/cni/networks")
    assert settings.checkpoint_dir == (Path("/var/lib/dockershim/sandbox"), Path("/var/lib/cri-dockerd/sandbox"))
    assert settings.device_plugins_dir == Path("/var/lib/kubelet/device-plugins")
    assert (settings.grace, settings.interval) == (timedelta(minutes=5), timedelta(seconds=15))
    assert (settings.listen, settings.node, settings.kubeconfig, settings.docker_host) == (("", 9747), "", None, "")


def test_nothing_is_released_by_default() -> None:
    settings = load("run", OFF, {})
    assert settings.cleanup == "off"
    assert settings.cleanup_network == ()
    assert (settings.settle, settings.max_share) == (timedelta(minutes=5), 0.5)
    assert (settings.max_per_sync, settings.max_per_hour) == (10, 60)
    assert settings.lock_timeout == timedelta(seconds=5)
    assert settings.state_dir == Path("/var/lib/nodeleak")


@pytest.mark.parametrize("text", ["on", "yes", "true", "apply", "auto ", "Auto", "clean"])
def test_only_auto_enables_cleanup(text: str) -> None:
    assert mistakes({**OFF, "cleanup": text}, command="run") == [
        f'--cleanup: invalid value "{text}": expected one of: off, dry-run, auto'
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
def test_cleanup_limits_can_be_set_in_the_environment(name: str, value: str, field: str, expected: object) -> None:
    assert getattr(load("run", OFF, {name: value}), field) == expected


@pytest.mark.parametrize("name", ["NODELEAK_APPLY", "NODELEAK_IP", "NODELEAK_MAX", "NODELEAK_DRY_RUN", "NODELEAK_LAST"])
def test_no_variable_can_allow_a_release(name: str) -> None:
    (mistake,) = mistakes(OFF, {name: "true"}, command="clean")
    assert mistake.startswith(f"{name}: unknown setting")


@pytest.mark.parametrize(("command", "seconds"), [("run", 30), ("scan", 0.005), ("record", 0.005), ("clean", 3)])
def test_confirm_after_has_a_default_per_command(command: str, seconds: float) -> None:
    assert load(command, OFF, {}).confirm_after == timedelta(seconds=seconds)


def test_options_override_the_environment_which_overrides_defaults() -> None:
    environment = {"NODELEAK_GRACE": "7m", "NODELEAK_API": "off"}
    assert load("scan", {"grace": None}, environment).grace == timedelta(minutes=7)
    assert load("scan", {"grace": "9m"}, environment).grace == timedelta(minutes=9)
    assert load("scan", {"grace": "0s"}, environment).grace == timedelta(0)


def test_an_empty_variable_counts_as_not_set() -> None:
    assert load("scan", OFF, {"NODELEAK_GRACE": ""}).grace == timedelta(minutes=5)


@pytest.mark.parametrize(
    "given", [["kubenet", "storage"], ["kubenet,storage"], "kubenet, storage", ["kubenet", "storage,kubenet"]]
)
def test_a_list_is_repeated_or_comma_separated_without_duplicates(given: Any) -> None:
    assert load("scan", {**OFF, "network": given}, {}).network == ("kubenet", "storage")


def test_a_list_in_the_environment_is_comma_separated() -> None:
    assert load("scan", OFF, {"NODELEAK_NETWORK": "kubenet,storage"}).network == ("kubenet", "storage")


@pytest.mark.parametrize("command", ["run", "scan", "record", "clean"])
def test_device_plugins_can_be_disabled(command: str) -> None:
    assert load(command, OFF, {"NODELEAK_DEVICE_PLUGINS_DIR": "off"}).device_plugins_dir is None
    assert load(command, {**OFF, "device_plugins_dir": "/k3s"}, {}).device_plugins_dir == Path("/k3s")


def test_the_last_of_repeated_options_counts() -> None:
    assert load("scan", {"api": ["on", "off"]}, {}).api == "off"


# Mistakes


def test_every_mistake_is_reported_with_setting_and_value() -> None:
    given = {"grace": "5", "network": ["kubenet", "../etc"], "proc": "proc"}
    environment = {"NODELEAK_LISTEN": "9747", "NODELEAK_INTERVALL": "15s", "NODELEAK_GRACE": "ignored"}
    assert mistakes(given, environment) == [
        'NODELEAK_INTERVALL: unknown setting: did you mean "NODELEAK_INTERVAL"?',
        (
            '--network: invalid value "kubenet,../etc": '
            "expected a CNI network name: letters, digits, dots, dashes and underscores"
        ),
        '--proc: invalid value "proc": expected an absolute path',
        '--grace: invalid value "5": expected a duration such as 90s or 5m',
        'NODELEAK_LISTEN: invalid value "9747": expected HOST:PORT, such as :9747, 127.0.0.1:9747 or [::1]:9747',
        MISSING_NODE,
    ]


@pytest.mark.parametrize("command", ["run", "clean"])
def test_a_cleanup_network_that_is_not_checked_is_a_mistake(command: str) -> None:
    for allowed in ("storage", "storage,other"):
        assert mistakes({**OFF, "network": ["kubenet"], "cleanup_network": [allowed]}, command=command) == [
            f"--cleanup-network={allowed}: network is not checked: add --network=storage"
        ]
    both: dict[str, Any] = {**OFF, "cleanup_network": ["storage"], "network": ["kubenet,storage"]}
    assert load(command, both, {}).cleanup_network == ("storage",)


@pytest.mark.parametrize(("read", "allowed"), [("auto", "storage"), ("kubenet", "auto"), ("auto", "auto"), ("x", "")])
def test_what_is_checked_may_be_known_only_by_the_node(read: str, allowed: str) -> None:
    settings = load("clean", {**OFF, "network": [read], "cleanup_network": [allowed]}, {})
    assert settings.cleanup_network == ((allowed,) if allowed else ())


def test_other_commands_do_not_care_which_networks_may_be_cleaned() -> None:
    environment = {"NODELEAK_CLEANUP_NETWORK": "storage", "NODELEAK_NETWORK": "kubenet"}
    assert load("scan", OFF, environment).network == ("kubenet",)


def test_yes_is_not_on() -> None:
    assert mistakes({"api": "yes"}) == ['--api: invalid value "yes": expected one of: on, off']


def test_the_node_name_has_no_default() -> None:
    assert mistakes({}) == [MISSING_NODE]
    assert load("scan", {"node": "worker-1"}, {}).node == "worker-1"
    assert load("scan", {}, {"NODELEAK_NODE": "worker-1"}).node == "worker-1"


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_that_use_the_api_server_need_a_node_name(command: str) -> None:
    if "node" in settings_of(command):
        assert mistakes({}, command=command) == [MISSING_NODE]
    else:
        assert command in {"restore", "resume", "journal", "status"}
        assert load(command, {}, {}).node == ""


def test_settings_by_command() -> None:
    assert set(settings_of("journal")) == {"state_dir"}
    assert set(settings_of("restore")) == {"state_dir", "lock_timeout", "cni_networks_dir", "cni_cache_dir", "run_dir"}
    bounds = {"cleanup_network", "settle", "max_share", "probe", "lock_timeout"}
    assert set(settings_of("clean")) - set(settings_of("scan")) == bounds
    assert set(settings_of("scan")) - set(settings_of("clean")) == set()
    assert all(
        {"device_plugins_dir", "state_dir"} <= set(settings_of(one)) for one in ("run", "scan", "record", "clean")
    )
    assert {"cleanup", "max_per_sync", "max_per_hour"} <= set(settings_of("run")) - set(settings_of("clean"))


def test_invalid_variables_of_other_commands_are_reported_too() -> None:
    """A pod has one environment for all commands: a mistake must not stay hidden until the daemon starts."""
    (mistake,) = mistakes({}, {"NODELEAK_MAX_SHARE": "50"}, command="journal")
    assert mistake == 'NODELEAK_MAX_SHARE: invalid value "50": expected a percentage from 0% to 100%, such as 50%'


@pytest.mark.parametrize(
    "name", ["NODELEAK_", "NODELEAK_X", "NODELEAK_GRACE_PERIOD", "NODELEAK_PORT", "NODELEAK_LISTEN_PORT"]
)
def test_an_unknown_variable_with_the_prefix_is_a_mistake(name: str) -> None:
    (mistake,) = mistakes(OFF, {name: "5m"})
    assert mistake.startswith(f'{name}: unknown setting: did you mean "NODELEAK_')


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
    ids=["other prefixes", "a Service named nodeleak", "a Service named nodeleak-metrics"],
)
def test_variables_of_others_are_ignored(environment: dict[str, str]) -> None:
    assert load("scan", OFF, environment).grace == timedelta(minutes=5)


# The table of settings


@pytest.mark.parametrize("command", COMMANDS)
def test_every_setting_has_an_option_a_variable_and_a_help_text(command: str) -> None:
    for name, setting in settings_of(command).items():
        assert option(name) == f"--{name.replace('_', '-')}"
        assert variable(name) == f"NODELEAK_{name.upper()}"
        assert setting.help
        assert not setting.help.endswith(".")
        assert setting.metavar


def test_control_characters_in_values_are_escaped() -> None:
    (mistake,) = mistakes({**OFF, "grace": "\x1b[2J"})
    assert "\x1b" not in mistake


def test_every_setting_belongs_to_a_command() -> None:
    assert {name for command in COMMANDS for name in settings_of(command)} == {one.name for one in fields(Config)}


def test_every_default_is_valid() -> None:
    for name, setting in settings_of("run").items():
        text = config.DEFAULT_CONFIRM_AFTER["run"] if name == "confirm_after" else setting.default
        absent, given = {"node": "worker-1"}, {"node": "worker-1", **({name: text} if name != "node" else {})}
        assert load("run", given, {}) == load("run", absent, {})


def test_the_node_condition_needs_the_api_server() -> None:
    assert mistakes({**OFF, "node_condition": "on"}, command="run") == [
        "--node-condition=on needs the API server: remove it, or remove --api=off"
    ]
    assert load("run", {"node": "n", "node_condition": "on"}, {}).node_condition == "on"
