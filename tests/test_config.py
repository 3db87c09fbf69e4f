"""Settings: how text is read, precedence, and messages for mistakes."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.config import UsageError, load

OFF = {"api": "off"}
MISSING_NODE = (
    "--node (NODELEAK_NODE) is not set: "
    "give the name of this node's Node object, or --api=off to run without the API server"
)


def mistakes(
    given: dict[str, Any], environment: dict[str, str] | None = None, command: str = "scan"
) -> list[str]:
    with pytest.raises(UsageError) as raised:
        load(command, given, environment or {})
    return str(raised.value).splitlines()


def test_valid_text_is_parsed_and_invalid_text_rejected_with_what_was_expected() -> None:
    durations = ("5", "5 m", " 5m", "5m ", "-5m", "m", "5x", "5mm", "1e3s", "5m3", "1.2.3s", "inf")
    percentages = (
        "50",
        "0.5",
        "101%",
        "100.1%",
        "-5%",
        "50 %",
        " 50%",
        "50%%",
        "%",
        "1e1%",
        "fifty%",
        "1000%",
    )
    for setting, why, texts in (
        ("grace", "expected a duration such as 90s or 5m", durations),
        ("grace", "duration is too long", ("9" * 400 + "d",)),
        ("docker_timeout", "from 1ms to 1h", ("0s", "0.0001ms", "61m", "999999999d")),
        ("stale_after", "from 2s to 1d", ("1s", "25h")),
        ("cni_networks_dir", "an absolute path", ("var/lib",)),
        ("device_plugins_dir", "an absolute path", ("no", "OFF", "device-plugins")),
        ("network", "letters, digits", ("..", "../kubenet", "kubenet/x")),
        ("node", "lower-case", ("Worker-1", "worker 1", "-worker", "worker=1", "w" * 254)),
        ("max_share", "expected a percentage from 0% to 100%, such as 50%", percentages),
        (
            "max_per_sync",
            "a whole number of 1 or more",
            ("0", "-1", "01", "1.0", "ten", " 1", "1 ", "1_000", "9" * 10),
        ),
        ("page", "expected one of: on, off", ("yes", "ON")),
        (
            "cleanup",
            "expected one of: off, dry-run, auto",
            ("on", "yes", "true", "apply", "auto ", "Auto", "clean"),
        ),
        (
            "max_reservations",
            "expected a whole number from 1 to 65536",
            ("0", "65537", "100000", "-1", "1e3", "9" * 5000),
        ),
        ("local_filesystem", "expected a type of file system", ("a b", "/dev", "nfs4,")),
        ("grace", "from 0s to 36500d", ("36501d", "999999999d")),
        ("listen", "expected HOST:PORT", ("9747", ":65536", ":", "::1:9747", "[banana]:9747")),
    ):
        for text in texts:
            (mistake,) = mistakes({**OFF, setting: text}, command="run")
            assert why in mistake, (setting, text)
    plugins = Path("/var/lib/kubelet/device-plugins")
    accepted: tuple[tuple[str, str, object], ...] = (
        *(("grace", text, timedelta(seconds=seconds)) for text, seconds in (
            ("90s", 90), ("5m", 300), ("1h30m", 5400), ("250ms", 0.25), ("1.5h", 5400), ("2d", 172_800), ("0s", 0),
        )),
        ("docker_timeout", "1ms", timedelta(milliseconds=1)), ("docker_timeout", "1h", timedelta(hours=1)),
        ("stale_after", "2s", timedelta(seconds=2)), ("stale_after", "1d", timedelta(days=1)),
        ("cni_networks_dir", "/srv/cni", Path("/srv/cni")), ("kubeconfig", "kubeconfig", Path("kubeconfig")),
        ("device_plugins_dir", "off", None), ("device_plugins_dir", str(plugins), plugins),
        ("network", "k8s-pod-network.1_a", ("k8s-pod-network.1_a",)),
        ("node", "10.12.97.31", "10.12.97.31"), ("node", "w" * 253, "w" * 253),
        *(("max_share", text, share) for text, share in (("50%", 0.5), ("0%", 0.0), ("100%", 1.0), ("12.5%", 0.125))),
        ("max_reservations", "65536", 65_536), ("max_reservations", "1", 1),
        ("local_filesystem", "", ()), ("local_filesystem", "virtiofs,fuse.sshfs", ("virtiofs", "fuse.sshfs")),
        ("max_per_sync", "1", 1), ("max_per_sync", "999999999", 999_999_999),
        ("listen", ":9747", ("", 9747)), ("listen", "127.0.0.1:0", ("127.0.0.1", 0)),
        ("listen", "[::1]:9747", ("::1", 9747)), ("listen", "localhost:65535", ("localhost", 65535)),
    )  # fmt: skip
    for setting, text, value in accepted:
        assert getattr(load("run", {**OFF, setting: text}, {}), setting) == value


def test_nothing_is_released_by_default_and_each_command_confirms_in_its_time() -> None:
    settings = load("run", OFF, {})
    assert settings.cleanup == "off"
    assert settings.cleanup_network == ()
    assert (settings.settle, settings.max_share) == (timedelta(minutes=5), 0.5)
    assert (settings.max_per_sync, settings.max_per_hour) == (10, 60)
    assert settings.lock_timeout == timedelta(seconds=5)
    assert settings.state_dir == Path("/var/lib/nodeleak")
    for command, seconds in (("run", 30), ("scan", 0.005), ("record", 0.005), ("clean", 3)):
        assert load(command, OFF, {}).confirm_after == timedelta(seconds=seconds)


def test_options_override_the_environment_which_overrides_defaults_and_lists_have_no_duplicates() -> (
    None
):
    environment = {"NODELEAK_GRACE": "7m", "NODELEAK_API": "off"}
    assert load("scan", {"grace": None}, environment).grace == timedelta(minutes=7)
    assert load("scan", {"grace": "9m"}, environment).grace == timedelta(minutes=9)
    assert load("scan", {"grace": "0s"}, environment).grace == timedelta(0)
    assert load("scan", OFF, {"NODELEAK_GRACE": ""}).grace == timedelta(minutes=5), (
        "empty is not set"
    )
    assert load("scan", {"api": ["on", "off"]}, {}).api == "off", (
        "the last of repeated options counts"
    )
    given: tuple[Any, ...] = (
        ["kubenet", "storage"], ["kubenet,storage"], "kubenet, storage", ["kubenet", "storage,kubenet"],
    )  # fmt: skip
    for networks in given:
        assert load("scan", {**OFF, "network": networks}, {}).network == ("kubenet", "storage")
    assert load("scan", OFF, {"NODELEAK_NETWORK": "kubenet,storage"}).network == (
        "kubenet",
        "storage",
    )


def test_a_cleanup_network_that_is_not_checked_is_a_mistake() -> None:
    for command, allowed in (("run", "storage"), ("clean", "storage,other")):
        assert mistakes(
            {**OFF, "network": ["kubenet"], "cleanup_network": [allowed]}, command=command
        ) == [f"--cleanup-network={allowed}: network is not checked: add --network=storage"]
    both: dict[str, Any] = {**OFF, "cleanup_network": ["storage"], "network": ["kubenet,storage"]}
    assert load("clean", both, {}).cleanup_network == ("storage",)
    # What is checked may be known only by the node.
    for read, allowed in (("auto", "storage"), ("kubenet", "auto"), ("auto", "auto"), ("x", "")):
        settings = load("clean", {**OFF, "network": [read], "cleanup_network": [allowed]}, {})
        assert settings.cleanup_network == ((allowed,) if allowed else ())
    environment = {"NODELEAK_CLEANUP_NETWORK": "storage", "NODELEAK_NETWORK": "kubenet"}
    assert load("scan", OFF, environment).network == ("kubenet",), "other commands do not care"


def test_a_certificate_needs_its_key_where_the_port_is_opened() -> None:
    for setting, missing in (
        ("tls_cert_file", "--tls-key-file (NODELEAK_TLS_KEY_FILE)"),
        ("tls_key_file", "--tls-cert-file (NODELEAK_TLS_CERT_FILE)"),
        ("tls_client_ca_file", "--tls-cert-file (NODELEAK_TLS_CERT_FILE)"),
    ):
        (mistake,) = mistakes({**OFF, setting: "/x"}, command="run")
        assert f"=/x needs {missing}" in mistake
        load("scan", OFF, {f"NODELEAK_{setting.upper()}": "/x"})


def test_commands_and_settings_that_use_the_api_server_need_a_node_name() -> None:
    for command in ("run", "scan", "timeline", "record", "clean"):
        assert mistakes({}, command=command) == [MISSING_NODE]
    for command in ("restore", "resume", "journal", "status"):
        assert load(command, {}, {}).node == ""
    assert load("scan", {"node": "worker-1"}, {}).node == "worker-1"
    assert load("scan", {}, {"NODELEAK_NODE": "worker-1"}).node == "worker-1"
    assert mistakes({**OFF, "node_condition": "on"}, command="run") == [
        "--node-condition=on needs the API server: remove it, or remove --api=off"
    ]
    assert load("run", {"node": "n", "node_condition": "on"}, {}).node_condition == "on"


def test_the_label_of_nodes_that_are_cleaned_is_a_label_and_needs_the_api_server() -> None:
    label = "nodeleak.dev/cleanup=auto"
    for text in (label, "pool=", "a.b/C_d=E.f"):
        assert load("run", {"node": "n", "cleanup_node_label": text}, {}).cleanup_node_label == text
    for text in ("pool", "a/b/c=d", "pool==x", "=x", "pool in (a)"):
        (mistake,) = mistakes({"node": "n", "cleanup_node_label": text}, command="run")
        assert "expected a label and its value, such as" in mistake
    (mistake,) = mistakes({**OFF, "cleanup_node_label": label}, command="run")
    assert mistake.startswith(f"--cleanup-node-label={label} needs the API server")


def test_what_releases_does_not_start_with_a_brake_that_it_could_not_read() -> None:
    given = {**OFF, "brake": "nodeleak-brake"}
    for command, more in (
        ("run", {"cleanup": "auto"}),
        ("run", {"cleanup": "dry-run"}),
        ("clean", {}),
    ):
        (mistake,) = mistakes(given | more, command=command)
        assert mistake.startswith("--brake=nodeleak-brake needs the API server: remove --api=off")
        assert "NODELEAK_BRAKE" in mistake
    for command in ("scan", "run"):
        assert load(command, given, {}).brake == "nodeleak-brake", "it releases nothing"
    for name in ("off", "nodeleak-brake", "kube-system/nodeleak-brake", "a/b.c"):
        assert load("clean", {"node": "n", "brake": name}, {}).brake == name
    for name in ("A", "a/b/c", "a.b/c", "/a", "a/", "a b"):
        (mistake,) = mistakes({"node": "n", "brake": name}, command="clean")
        assert "expected the name of a ConfigMap" in mistake


def test_a_mistaken_variable_of_any_command_is_reported_unless_it_is_of_others_or_of_a_service() -> (
    None
):
    for name in ("", "X", "GRACE_PERIOD", "PORT", "LISTEN_PORT"):
        (mistake,) = mistakes(OFF, {f"NODELEAK_{name}": "5m"})
        assert mistake.startswith(f'NODELEAK_{name}: unknown setting: did you mean "NODELEAK_')
    of_services = {
        f"NODELEAK_{service}{name}": "10.0.0.1"
        for service in ("", "METRICS_")
        for name in (
            "SERVICE_HOST",
            "SERVICE_PORT",
            "SERVICE_PORT_METRICS",
            "PORT_9747_TCP",
            "PORT_9747_TCP_ADDR",
        )
    }
    of_services |= {
        "NODELEAK_PORT": "tcp://10.0.0.1:9747",
        "NODELEAK_METRICS_PORT": "tcp://10.0.0.1:9747",
    }
    for environment in (
        {"PATH": "/bin", "nodeleak_grace": "x", "MY_NODELEAK_GRACE": "x"},
        of_services,
    ):
        assert load("scan", OFF, environment).grace == timedelta(minutes=5)
    # A pod has one environment for all commands: a mistake must not stay hidden until the daemon starts.
    (mistake,) = mistakes({}, {"NODELEAK_MAX_SHARE": "50"}, command="journal")
    assert (
        mistake
        == 'NODELEAK_MAX_SHARE: invalid value "50": expected a percentage from 0% to 100%, such as 50%'
    )
