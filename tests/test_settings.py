"""Settings: environment before file, strict, all mistakes at once."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from garrison.errors import InvalidSpec, NotFound
from garrison.models.offer import Offer
from garrison.settings import ProviderType, Settings, installation_id, load_settings

NO_ADAPTER = "this version has no adapter for {}; it must be local or simulated"


def load(data_dir: Path, text: str | None = None, **environ: str) -> Settings:
    if text is not None:
        (data_dir / "garrison.yaml").write_text(text, encoding="utf-8")
    return load_settings({"GARRISON_DATA_DIR": str(data_dir), **environ})


def problems(data_dir: Path, text: str) -> list[str]:
    with pytest.raises(InvalidSpec) as caught:
        load(data_dir, text)
    assert caught.value.source == str(data_dir / "garrison.yaml")
    return [str(problem) for problem in caught.value.problems]


def test_without_any_file_there_are_defaults(tmp_path: Path) -> None:
    settings = load(tmp_path / "new", GARRISON_USER="ada")

    assert settings.config is None
    assert settings.log_dir == tmp_path / "new" / "logs"
    assert {n: p.type for n, p in settings.providers.items()} == {
        "local": ProviderType.LOCAL,
        "simulated": ProviderType.SIMULATED,
    }
    assert settings.watch_interval == timedelta(seconds=15)
    assert settings.watch_interval_busy == timedelta(seconds=2)
    assert settings.quote_valid == timedelta(minutes=15)
    assert settings.heartbeat_timeout == timedelta(seconds=30)
    assert settings.deadman == timedelta(hours=6)
    assert (settings.limits.max_nodes, settings.limits.max_gpus_per_node) == (8, 8)
    assert settings.owner == "ada"
    assert not (tmp_path / "new").exists()


def test_the_process_environment_is_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GARRISON_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("GARRISON_INSTALLATION", "lab")

    settings = load_settings()

    assert (settings.data_dir, settings.installation) == (tmp_path, "lab")


def test_the_owner_is_the_login_name_unless_set(tmp_path: Path) -> None:
    assert load(tmp_path).owner
    assert load(tmp_path, "owner: team-a\n").owner == "team-a"
    assert load(tmp_path, "owner: team-a\n", GARRISON_USER="ada").owner == "ada"


def test_an_empty_variable_counts_as_unset(tmp_path: Path) -> None:
    settings = load(tmp_path, GARRISON_CONFIG="", GARRISON_INSTALLATION="", GARRISON_LOG_DIR="")

    assert settings.installation is None
    assert settings.log_dir == tmp_path / "logs"


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        """\
installation: lab-1
log_dir: /var/log/garrison
namespace: prod
limits: {max_nodes: 64}
watch_interval: 30
watch_interval_busy: 0.5
heartbeat_timeout: 2
quote_valid: 5
deadman_hours: 12
providers:
  simulated:
    regions: [x, y]
    boot_seconds: 0
    settle_seconds: 2.5
    start_timeout: 60
  local:
  big-cloud:
    type: simulated
    regions: [us-east-1]
    calls_per_second: 5
    prices:
      p5.48xlarge: 98.32
      p4d.24xlarge: {cluster_usd_per_hour: 20.1, root_disk_usd_per_gb_month: 0.08}
""",
    )

    assert settings.installation == "lab-1"
    assert settings.limits.max_nodes == 64
    assert settings.watch_interval_busy == timedelta(milliseconds=500)
    assert settings.quote_valid == timedelta(minutes=5)
    assert settings.heartbeat_timeout == timedelta(seconds=2)
    assert settings.providers["local"].type is ProviderType.LOCAL
    assert settings.providers["simulated"].boot_seconds == 0
    assert settings.providers["simulated"].start_timeout == timedelta(seconds=60)
    big = settings.providers["big-cloud"]
    assert big.type is ProviderType.SIMULATED
    assert big.prices["p5.48xlarge"].usd_per_hour == Decimal("98.32")
    assert big.prices["p4d.24xlarge"].cluster_usd_per_hour == Decimal("20.1")


def test_the_operators_own_price_goes_before_the_offered_one(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        "providers: {aws: {type: simulated, prices: {p5: {cluster_usd_per_hour: 9, "
        "root_disk_usd_per_gb_month: 0.1}}}}\n",
    )
    offer = Offer(
        provider="aws", instance_type="p5", usd_per_hour=Decimal(10), root_disk_price_unknown=True
    )

    priced = settings.providers["aws"].price(offer)

    assert (priced.usd_per_hour, priced.cluster_usd_per_hour) == (Decimal(10), Decimal(9))
    assert priced.root_disk_usd_per_gb_month == Decimal("0.1")
    assert not priced.root_disk_price_unknown
    assert priced.source == "settings"


def test_an_offer_without_an_own_price_stays_as_it_is(tmp_path: Path) -> None:
    settings = load(tmp_path, "providers: {aws: {type: simulated, prices: {p5: 9}}}\n")
    offer = Offer(provider="aws", instance_type="p4", usd_per_hour=Decimal(10))

    assert settings.providers["aws"].price(offer) is offer


def test_every_mistake_is_listed_with_its_line(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        """\
watch_intervall: 3
watch_interval: soon
quote_valid: 0
limits: {max_node: 3}
providers:
  local:
    boot_seconds: 3
    prices: {p5: free, p4: 0, p3: -1, p2: NaN}
  mine: {regions: [a]}
  cloud: {type: azure}
  sim: {type: simulated, boot_seconds: -1}
  aws: {regions: [us-east-1]}
  ours: {type: together}
  here: {type: local, regions: [moon], start_timeout: 5, calls_per_second: 5}
""",
    )

    assert found == [
        "line 1: watch_intervall: is not a known key; did you mean 'watch_interval'?",
        "line 2: watch_interval: must be a plain number above 0, such as 15 or 0.5, not 'soon'",
        "line 3: quote_valid: must be a plain number above 0, such as 15 or 0.5, not '0'",
        "line 4: limits.max_node: is not a known key; did you mean 'max_nodes'?",
        "line 7: providers.local.boot_seconds: is for providers of type simulated, not local",
        "line 8: providers.local.prices.p5.usd_per_hour: must be a number, not 'free'",
        "line 8: providers.local.prices.p4.usd_per_hour: must be above 0, not '0'",
        "line 8: providers.local.prices.p3.usd_per_hour: must be above 0, not '-1'",
        "line 8: providers.local.prices.p2.usd_per_hour: must be a finite number, not 'NaN'",
        "line 9: providers.mine.type: is missing",
        "line 10: providers.cloud.type: must be 'local', 'simulated', 'aws', 'together' or 'ssh', "
        "not 'azure'",
        "line 11: providers.sim.boot_seconds: must be at least 0, not '-1'",
        f"line 12: providers.aws.type: {NO_ADAPTER.format('aws')}",
        f"line 13: providers.ours.type: {NO_ADAPTER.format('together')}",
        "line 14: providers.here.regions: a provider of type local has one region, local",
        "line 14: providers.here.start_timeout: cannot be set for a provider of type local",
        "line 14: providers.here.calls_per_second: cannot be set for a provider of type local",
    ]


def test_settings_that_are_no_file_are_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "garrison.yaml")

    with pytest.raises(InvalidSpec, match=r"garrison.yaml cannot be read: Is no regular file"):
        load(tmp_path)


@pytest.mark.parametrize("seconds", ["1.9", "601", "0", "-3", "soon"])
def test_a_heartbeat_timeout_has_bounds(tmp_path: Path, seconds: str) -> None:
    (found,) = problems(tmp_path, f"heartbeat_timeout: {seconds}\n")

    wanted = "must be a plain number from 2 to 600"
    assert found == f"line 1: heartbeat_timeout: {wanted}, not {seconds!r}"


@pytest.mark.parametrize("text", ["", "# only a comment\n", "{}\n"])
def test_a_file_that_says_nothing_means_the_defaults(tmp_path: Path, text: str) -> None:
    assert set(load(tmp_path, text).providers) == {"local", "simulated"}


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"GARRISON_CONFIG names .*missing\.yaml"):
        load(tmp_path, GARRISON_CONFIG=str(tmp_path / "missing.yaml"))


def test_a_named_file_goes_before_the_one_in_the_data_directory(tmp_path: Path) -> None:
    named = tmp_path / "other.yaml"
    named.write_text("owner: other\n")

    settings = load(tmp_path, "owner: here\n", GARRISON_CONFIG=str(named))

    assert (settings.owner, settings.config) == ("other", named)


def test_a_damaged_file_is_refused_by_line(tmp_path: Path) -> None:
    (tmp_path / "garrison.yaml").write_bytes("owner: a\nnamespace: caf\xe9\n".encode("cp1252"))

    with pytest.raises(InvalidSpec, match="line 2: is not UTF-8"):
        load(tmp_path)


def test_a_client_needs_no_installation(tmp_path: Path) -> None:
    settings = load(tmp_path)

    with pytest.raises(NotFound, match="garrison up"):
        installation_id(settings, create=False)
    assert list(tmp_path.iterdir()) == []


def test_the_installation_is_made_once(tmp_path: Path) -> None:
    settings = load(tmp_path / "data")

    with ThreadPoolExecutor(8) as pool:
        made = set(pool.map(lambda _: installation_id(settings, create=True), range(32)))

    assert len(made) == 1
    assert installation_id(settings, create=False) in made
    assert os.listdir(tmp_path / "data") == ["installation"]


def test_a_set_installation_wins_over_the_stored_one(tmp_path: Path) -> None:
    installation_id(load(tmp_path), create=True)

    assert installation_id(load(tmp_path, GARRISON_INSTALLATION="lab"), create=False) == "lab"


def test_a_damaged_installation_is_refused_rather_than_replaced(tmp_path: Path) -> None:
    (tmp_path / "installation").write_text("")

    with pytest.raises(InvalidSpec, match="does not hold an installation id"):
        installation_id(load(tmp_path), create=True)


@pytest.mark.parametrize("value", ["a b", "-x", "x" * 33, "ünï"])
def test_an_installation_that_fits_no_tag_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(InvalidSpec, match="GARRISON_INSTALLATION"):
        load(tmp_path, GARRISON_INSTALLATION=value)


def test_models_are_read_by_name_and_pattern(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        """\
models:
  "meta/Llama-3/*":
    image: registry.example/llm:1
    command: [serve, 3.10]
    env: {PORT_WISH: 8080, EMPTY: , TILDE: ~, TOKEN: {secret: hf}}
    port: 8000
    resources: {cpu: 500m, memory: 28Gi, accelerators: 1, accelerator_type: NVIDIA-*}
    health: {path: /health}
  "*": {command: serve}
""",
    )

    llama = settings.models["meta/Llama-3/*"]
    assert llama.command == ("serve", "3.10")
    assert llama.env == {"PORT_WISH": "8080", "EMPTY": "", "TILDE": "~", "TOKEN": "secret:hf"}
    assert llama.template().resources.memory_bytes == 30_064_771_072
    assert settings.models["*"].command == ("/bin/sh", "-c", "serve")


def test_mistakes_of_models_are_listed_with_all_others(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        """\
quote_valid: 0
models:
  "a b/c": {command: serve}
  a/b/c:
    port: 80
  a/b/d:
    comand: serve
    image: x
    port: 99999
    env: {A: [hunter2], 1B: x}
    resources: {memory: 28, acelerators: 1}
    health: {path: health}
""",
    )

    assert found == [
        "line 1: quote_valid: must be a plain number above 0, such as 15 or 0.5, not '0'",
        "line 3: models.a b/c: 'a b/c' is no model: letters, digits and . _ - between slashes, "
        "such as meta/Llama-3/my-model; * stands for any text",
        "line 4: models.a/b/c: needs a `command` or an `image`",
        "line 7: models.a/b/d.comand: is not a known key; did you mean 'command'?",
        "line 9: models.a/b/d.port: must be at most 65535, not '99999'",
        "line 10: models.a/b/d.env.A: must be text",
        "line 10: models.a/b/d.env.1B: '1B' is no environment variable name",
        "line 11: models.a/b/d.resources.memory: '28' is less than 1Mi; give a unit, such as 28Gi",
        "line 11: models.a/b/d.resources.acelerators: is not a known key; "
        "did you mean 'accelerators'?",
        "line 12: models.a/b/d.health.path: must be a path such as /health, not 'health'",
    ]


def test_the_example_settings_are_valid_and_name_a_cloud_on_paper_aws() -> None:
    path = Path(__file__).parents[1] / "examples" / "settings.yaml"

    settings = load_settings({"GARRISON_CONFIG": str(path), "GARRISON_DATA_DIR": "unused"})

    assert settings.providers["aws"].type is ProviderType.SIMULATED
    assert list(settings.models) == ["meta/Llama-3/*"]


def test_a_prometheus_server_is_named_with_its_path(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        "load: {prometheus: {url: 'https://metrics.example/prom/', token_file: /run/token,"
        " timeout_seconds: 2.5}}\n",
    )

    prometheus = settings.load.prometheus
    assert prometheus is not None
    assert prometheus.url == "https://metrics.example/prom/"
    assert prometheus.token_file == Path("/run/token")
    assert prometheus.timeout_seconds == 2.5
    assert load(tmp_path, "owner: a\n").load.prometheus is None


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("{}", ".url: is missing"),
        ("{url: prometheus:9090}", ".url: must be an address such as"),
        ("{url: 'ftp://p'}", ".url: must be an address such as"),
        ("{url: 'http://'}", ".url: must be an address such as"),
        ("{url: 'http://p:x'}", ".url: must be an address such as"),
        ("{url: 'http://p:0'}", ".url: must be an address such as"),
        ("{url: 'http://p q'}", ".url: must be an address such as"),
        ("{url: 'http://u:hunter2@p'}", ".url: must not hold a password; put a token into"),
        ("{url: 'http://p/?token=hunter2'}", ".url: must end with the host, the port or a path"),
        ("{url: 'http://p#x'}", ".url: must end with the host, the port or a path"),
        ("{url: 'http://p', timeout_seconds: 0}", ".timeout_seconds: must be at least 0.1"),
        ("{url: 'http://p', timeout_seconds: 61}", ".timeout_seconds: must be at most 60"),
        ("{url: 'http://p', tokenfile: x}", ".tokenfile: is not a known key; did you mean"),
    ],
)
def test_a_bad_prometheus_server_is_one_of_the_mistakes(
    tmp_path: Path, keys: str, said: str
) -> None:
    found = problems(tmp_path, f"load: {{prometheus: {keys}}}\nquote_valid: 0\n")

    assert found[0].startswith(f"line 1: load.prometheus{said}")
    assert "hunter2" not in found[0]
    assert found[1].startswith("line 2: quote_valid")
