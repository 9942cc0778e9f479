"""Settings: where they come from, which source wins, and what is said of wrong ones."""

from pathlib import Path

import pytest

from kairos.core import POLICIES, Budget, SetupError, TenantWeight
from kairos.settings import (
    EngineSettings,
    KeySettings,
    OidcSettings,
    Settings,
    load_settings,
    parse_engine,
    tenant_entitlements,
)
from kairos.settings.tenants import QuotaSettings, ServiceClassSettings, TenantSettings

DIGEST = "0123456789abcdef" * 4
SECRET = "hunter2"


@pytest.fixture
def file(tmp_path):
    """Writes a settings file and returns its path."""

    def write(text: str | bytes):
        path = tmp_path / "kairos.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def problem(path=None, environ=None, **arguments) -> str:
    with pytest.raises(SetupError) as refused:
        load_settings(path, environ or {}, arguments)
    return str(refused.value)


def test_a_file_can_say_everything(file):
    path = file(f"""
        host = "0.0.0.0"
        port = 1
        admin_host = "::1"
        admin_port = 2
        admin_hosts = ["kairos.internal", "gpu1"]
        policy = "fcfs"
        placement = "round-robin"
        max_waiting = 3
        max_body_bytes = 4
        log_dir = "facts"
        learnt_path = "learnt"

        [[engine]]
        url = "http://gpu1:8000/v1"
        max_num_seqs = 5
        kv_tokens = 6

        [[engine]]
        url = "https://gpu2"
        api_key_env = "GPU2_KEY"

        [[key]]
        sha256 = "{DIGEST}"
        tenant = "acme"
    """)

    assert load_settings(path, {"GPU2_KEY": SECRET}, {}) == Settings(
        host="0.0.0.0",
        port=1,
        admin_host="::1",
        admin_port=2,
        admin_hosts=("kairos.internal", "gpu1"),
        policy="fcfs",
        placement="round-robin",
        max_waiting=3,
        max_body_bytes=4,
        log_dir="facts",
        learnt_path="learnt",
        engine=(
            EngineSettings(url="http://gpu1:8000/v1", max_num_seqs=5, kv_tokens=6),
            EngineSettings(url="https://gpu2", api_key_env="GPU2_KEY"),
        ),
        key=(KeySettings(sha256=DIGEST, tenant="acme"),),
    )


def test_budgets_are_what_a_workflow_may_use(file):
    assert load_settings(None, {}, {}).budget == Budget()
    settings = load_settings(
        file("budget_calls = 7\nbudget_s = 2"), {"KAIROS_BUDGET_TOKENS": "9"}, {}
    )
    assert settings.budget == Budget(7, 9, 2_000_000)


@pytest.mark.parametrize(
    ("given", "kept_in"),
    [
        ({}, None),
        ({"log_dir": "facts"}, "facts/learnt.json"),
        ({"learnt_path": "known.json"}, "known.json"),
        ({"log_dir": "facts", "learnt_path": "known.json"}, "known.json"),
    ],
)
def test_what_is_learnt_is_kept_where_it_is_said_or_beside_the_log(given, kept_in):
    assert load_settings(None, {}, given).learnt_file == (kept_in and Path(kept_in))


@pytest.mark.parametrize(
    ("text", "engine"),
    [
        ("http://h:1", EngineSettings(url="http://h:1")),
        ("http://h:1,max_num_seqs=8", EngineSettings(url="http://h:1", max_num_seqs=8)),
        (
            "http://h:1,kv_tokens=9000,max_num_seqs=8",
            EngineSettings(url="http://h:1", max_num_seqs=8, kv_tokens=9000),
        ),
        ("http://h:1,priority=yes", EngineSettings(url="http://h:1", priority=True)),
        ("http://h:1,priority=no", EngineSettings(url="http://h:1", priority=False)),
        ("http://h:1,token_us=12500", EngineSettings(url="http://h:1", token_us=12_500)),
        (
            "http://h:1,phase=prefill,usd_per_hour=2.5",
            EngineSettings(url="http://h:1", phase="prefill", usd_per_hour=2.5),
        ),
        (
            "http://h:1,token_us=12.25,kv_tokens=9",
            EngineSettings(url="http://h:1", token_us=12.25, kv_tokens=9),
        ),
    ],
)
def test_an_engine_is_a_url_and_maybe_what_it_does_not_tell(text, engine):
    assert parse_engine(text) == engine


UNKNOWN_POLICY = (
    f"there is no policy 'x'; known: {', '.join(sorted(POLICIES))}; your own: "
    "--policy package.module:Class"
)
MOVED_PLACEMENT = (
    "placement 'affinity' is a baseline of experiments now: in a checkout, --placement "
    "experiments.baseline_placements:Affinity; known: kairos, least-kv, round-robin, time-slot"
)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"policy": "x"}, UNKNOWN_POLICY),
        ({"placement": "affinity"}, MOVED_PLACEMENT),
        (
            {"policy": "no_such:Thing"},
            "--policy no_such:Thing: ModuleNotFoundError: No module named 'no_such'",
        ),
        ({"port": -1}, "port -1 is not a port (0 to 65535)"),
        ({"port": 65536}, "port 65536 is not a port (0 to 65535)"),
        ({"admin_port": 65536}, "admin_port 65536 is not a port (0 to 65535)"),
        ({"max_waiting": 0}, "max_waiting must be at least 1"),
        ({"budget_calls": 0}, "budget_calls must be at least 1"),
        ({"budget_tokens": -1}, "budget_tokens must be at least 1"),
        ({"budget_s": 0}, "budget_s must be at least 1"),
        ({"max_body_bytes": 0}, "max_body_bytes must be at least 1"),
    ],
)
def test_a_value_out_of_its_range_is_named_with_what_it_may_be(arguments, message):
    assert problem(**arguments) == message


@pytest.mark.parametrize("name", ["http://a", "a:8001", "a b", "*", "*.a", "-a", "é", "a" * 300])
@pytest.mark.parametrize("setting", ["admin_hosts", "allowed_hosts"])
def test_a_host_that_cannot_be_one_is_named(setting, name):
    if (setting, name) == ("allowed_hosts", "*"):
        assert load_settings(None, {}, {setting: [name]}).allowed_hosts == ("*",)
        return
    assert problem(**{setting: ["fine.example", name]}) == (
        f"{setting}: '{name}' is not a host name (no scheme, no port)"
    )


def test_hosts_are_listed_with_commas_where_there_are_no_lists(file):
    path = file('admin_hosts = ["a"]')
    environ = {"KAIROS_ADMIN_HOSTS": "b, gpu1.internal,"}

    assert load_settings(path, environ, {"admin_hosts": None}).admin_hosts == ("b", "gpu1.internal")
    assert load_settings(path, environ, {"admin_hosts": ["c"]}).admin_hosts == ("c",)
    assert load_settings(path, {}, {}).admin_names == ("a", "127.0.0.1")
    assert load_settings(path, {"KAIROS_ALLOWED_HOSTS": "b,*"}, {}).admin_names == (
        "a",
        "b",
        "*",
        "127.0.0.1",
    )


@pytest.mark.parametrize("port", [0, 65535])
def test_the_first_and_the_last_port_are_ports(port):
    assert load_settings(None, {}, {"port": port}).port == port


def test_an_empty_variable_is_as_good_as_none():
    assert load_settings(None, {"KAIROS_PORT": "", "KAIROS_LOG_DIR": ""}, {}) == Settings()


@pytest.mark.parametrize("value", ["http", "80.5", "[]"])
def test_a_value_of_the_wrong_type_in_the_environment_is_named(value):
    assert problem(environ={"KAIROS_PORT": value}).endswith("- at `$.port`")


def test_a_file_with_a_wrong_type_is_refused_even_where_something_else_wins(file):
    assert "`$.port`" in problem(file('port = "8000"'), port=9000)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    missing = tmp_path / "missing.toml"

    assert problem(missing) == f"--config {missing}: No such file or directory"
    assert problem(tmp_path) == f"--config {tmp_path}: Is a directory"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "gpu1:8000",
        "ftp://gpu1",
        "http://",
        "http://:8000",
        "http://[::1",
        "http://gpu1:port",
        "http://gpu1:0",
        "http://gpu1:99999",
        # What the look-up of a host, or the HTTP client, would not take:
        "http://gpu..1",
        f"http://{'g' * 64}",
        "http://gpu 1",
        "http://gpu1\\x",
        "http://gpu1\n",
        "http://gp\u00fc1",
        "http://[::1]x",
        "http://[zz]:8000",
        "http://gpu1/?key=x",
        "http://gpu1/#x",
        "http://gpu1/a b",
    ],
)
def test_an_engine_that_is_no_url_is_named(url):
    assert problem(engine=[EngineSettings(url=url)]) == (
        f"engine '{url}' is not a URL like http://127.0.0.1:8101"
    )


def test_a_url_has_a_limit_and_so_has_what_is_said_of_it():
    url = "http://" + "a." * 490
    load_settings(None, {}, {"engine": [EngineSettings(url=url + "a" * 13)]})
    assert len(problem(engine=[EngineSettings(url=url + "a" * 14)])) < 300


@pytest.mark.parametrize("limit", ["max_num_seqs", "kv_tokens"])
def test_an_engine_whose_limit_is_beyond_all_machines_is_named(limit):
    load_settings(None, {}, {"engine": [EngineSettings(url="http://h:1", **{limit: 10**12 - 1})]})
    engine = EngineSettings(url="http://h:1", **{limit: 10**12})
    assert problem(engine=[engine]) == f"engine h:1: {limit} must be under 1000000000000"


def test_there_may_be_only_so_many_engines():
    engines = [EngineSettings(url=f"http://h{n}") for n in range(1001)]
    load_settings(None, {}, {"engine": engines[1:]})
    assert problem(engine=engines) == "1001 engines are too many: at most 1000"


@pytest.mark.parametrize("limit", ["max_num_seqs", "kv_tokens"])
def test_an_engine_whose_limit_leaves_no_room_is_named(limit):
    engine = parse_engine(f"http://h:1,{limit}=0")

    assert problem(engine=[engine]) == f"engine h:1: {limit} must be at least 1"


@pytest.mark.parametrize("usd", [-1.0, 1e7, float("nan"), float("inf")])
def test_a_price_that_cannot_be_is_named_with_its_engine(usd):
    engine = EngineSettings(url="http://h:1", usd_per_hour=usd)

    expected = "engine h:1: usd_per_hour must be 0 or more, and under 10000000"
    assert problem(engine=[engine]) == expected


@pytest.mark.parametrize("token_us", [0, 60e6, 1e12, float("nan"), float("inf"), -1.0])
def test_a_time_per_token_that_cannot_be_is_named_with_its_engine(token_us):
    engine = EngineSettings(url="http://h:1", token_us=token_us)

    assert problem(engine=[engine]) == ("engine h:1: token_us must be over 0 and under 60000000")


def test_the_file_says_of_an_engine_what_the_command_line_does(tmp_path):
    path = tmp_path / "kairos.toml"
    path.write_text('[[engine]]\nurl = "http://h:1"\npriority = true\ntoken_us = 12500\n')

    [engine] = load_settings(path, {}, {}).engine
    assert engine == parse_engine("http://h:1,priority=yes,token_us=12500")


def test_an_engine_named_twice_is_named_once_more():
    engines = [EngineSettings(url=url) for url in ("http://h:1", "http://h:2", "https://h:1/v1")]

    assert problem(engine=engines) == "engine h:1 is named twice"


@pytest.mark.parametrize("environ", [{}, {"GPU_KEY": ""}])
def test_an_engine_whose_key_is_missing_is_named_with_the_variable(environ):
    engine = EngineSettings(url="http://h:1", api_key_env="GPU_KEY")

    assert problem(None, environ, engine=[engine]) == (
        "engine h:1: the variable GPU_KEY is not set"
    )


def test_a_key_in_the_url_is_sent_to_where_it_belongs():
    engine = EngineSettings(url=f"http://user:{SECRET}@h:1")

    assert problem(engine=[engine]) == "engine h:1: put its key into api_key_env, not into the URL"


@pytest.mark.parametrize(
    "url",
    [
        f"htp://user:{SECRET}@h",
        f"user:{SECRET}@h",
        f"//user:{SECRET}//x@h",
        f"http://user:{SECRET}@",
        f"http://a@b:{SECRET}@h:port",
        f"http://user:\n{SECRET}@[h",
    ],
)
def test_no_message_repeats_what_could_be_a_password(url):
    assert SECRET not in problem(engine=[EngineSettings(url=url)])
    with pytest.raises(SetupError) as refused:
        parse_engine(f"{url},x")
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("sha256", ["", SECRET, DIGEST[:-1], DIGEST + "0", DIGEST.upper()])
def test_a_key_that_is_no_digest_is_named_by_its_tenant_and_not_repeated(sha256):
    message = problem(key=[KeySettings(sha256=sha256, tenant="acme")])

    assert message == (
        "the key of tenant 'acme' must be 64 hexadecimal digits: the output of "
        'printf %s "$KEY" | sha256sum'
    )


@pytest.mark.parametrize("app", ["", "two words", "-x", "a" * 129])
def test_the_app_that_a_key_is_for_is_an_identifier(app):
    message = problem(key=[KeySettings(sha256=DIGEST, tenant="acme", app=app)])

    assert message == f"'{app}' is not a valid app name"


@pytest.mark.parametrize("path", ["user", "prompt_cache_key", "metadata.run", "metadata.a.b-c_D"])
def test_a_field_of_the_body_may_say_who_calls(path):
    assert load_settings(None, {}, {"identity": {"agent": path}}).identity == {"agent": path}


@pytest.mark.parametrize(
    "path", ["", "messages", "metadata", "metadata.", "user.id", "metadata.a\n"]
)
def test_only_some_fields_of_the_body_may(path):
    message = problem(identity={"workflow_id": path})

    assert message == (
        f"identity.workflow_id: '{path}' is not one of user, prompt_cache_key, metadata.NAME"
    )


KEYS = [KeySettings(sha256=DIGEST, tenant="acme")]


@pytest.mark.parametrize(
    ("tenants", "said"),
    [
        ([TenantSettings(name="a b")], "'a b' is not a valid tenant name (letters, digits, _ . -)"),
        ([TenantSettings(name="acme")] * 2, "tenant 'acme' is named twice"),
        ([TenantSettings(name="other")], "tenant 'other' has no key, so nobody calls for it"),
        (
            [TenantSettings(name="acme", weight=0)],
            "tenant 'acme': weight 0 is out of range (0.001 to 1000)",
        ),
        (
            [TenantSettings(name="acme", weight=float("nan"))],
            "tenant 'acme': weight nan is out of range (0.001 to 1000)",
        ),
        (
            [TenantSettings(name="acme", apps={"chat": -1})],
            "app 'chat' of tenant 'acme': weight -1 is out of range (0.001 to 1000)",
        ),
        ([TenantSettings(name="acme", apps={"a b": 1})], "'a b' is not a valid app name"),
    ],
)
def test_what_is_wrong_with_a_tenant_is_said(tenants, said):
    assert problem(key=KEYS, tenant=tenants) == said


def test_what_would_not_fit_the_log_is_refused():
    tenants = [TenantSettings(name="acme", apps={f"a{n}": 2.0 for n in range(60_000)})]
    assert "bytes in the log, at most 524288 fit" in problem(key=KEYS, tenant=tenants)


@pytest.mark.parametrize(
    ("quotas", "said"),
    [
        ([{"tenant": "other"}], "tenant 'other': it has no key, so nobody calls for it"),
        ([{"tenant": "acme"}], "tenant 'acme' limits nothing: give calls_per_minute, for example"),
        ([{"tenant": "acme", "calls_at_once": 0}], "tenant 'acme': a limit must be at least 1"),
        ([{"tenant": "acme", "calls_at_once": 1}] * 2, "tenant 'acme' is given twice"),
        (
            [{"tenant": "acme", "app": "x", "tokens_per_day": -1}],
            "tenant 'acme', app 'x': a limit must be at least 1",
        ),
        (
            [{"tenant": "acme", "key": "ci", "calls_at_once": 1}],
            "tenant 'acme', key 'ci': the tenant has no key of that name",
        ),
        (
            [{"tenant": "acme", "app": "x", "key": "ci", "calls_at_once": 1}],
            "tenant 'acme', app 'x', key 'ci': it is of an app or of a key; give each a quota",
        ),
        (
            [{"tenant": "acme", "app": "x", "kv_share": 0.5}],
            "tenant 'acme', app 'x': kv_share is of a whole tenant",
        ),
        (
            [{"tenant": "acme", "kv_share": 1.5}],
            "tenant 'acme': kv_share must be above 0, and at most 1",
        ),
    ],
)
def test_what_is_wrong_with_a_quota_is_said(quotas, said):
    given = [QuotaSettings(**each) for each in quotas]
    assert problem(key=KEYS, quota=given) == f"the quota of {said}"


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        ([{"name": "a b"}], "'a b' is not a valid class name (letters, digits, _ -)"),
        ([{"name": "x"}] * 2, "class 'x' is named twice"),
        ([{"name": "x", "weight": 0}], "class 'x': weight 0 is out of range (0.001 to 1000)"),
        (
            [{"name": "x", "max_wait_s": 0}],
            "class 'x': max_wait_s must be above 0, and at most a year",
        ),
        ([{"name": f"c{n}"} for n in range(33)], "33 classes are too many: at most 32"),
    ],
)
def test_what_is_wrong_with_a_class_of_service_is_said(classes, said):
    given = [ServiceClassSettings(**each) for each in classes]
    assert problem(service_class=given) == said


def test_a_key_names_classes_that_there_are():
    keys = [KeySettings(sha256=DIGEST, tenant="acme", service_classes=("standard", "urgent"))]
    named = "interactive, standard, batch"
    assert problem(key=keys) == f"the key of tenant 'acme': no class 'urgent'; {named}"
    assert load_settings(
        None, {}, {"key": keys, "service_class": [ServiceClassSettings(name="urgent")]}
    )


def test_tenants_have_weights_and_so_do_their_apps(tmp_path):
    path = tmp_path / "kairos.toml"
    key = f'[[key]]\nsha256 = "{DIGEST}"\ntenant = "acme"\n'
    path.write_text(f'{key}[[tenant]]\nname = "acme"\nweight = 3\n[tenant.apps]\nchat = 2\n')
    settings = load_settings(path, {}, {})
    entitled = tenant_entitlements(settings.tenant, settings.service_class, settings.quota)
    assert entitled.weights == {"acme": TenantWeight(3.0, {"chat": 2.0})}


def test_the_file_says_where_the_tokenizers_of_models_are_and_the_environment_does_not(file):
    path = file('[tokenizer]\n"Qwen/Qwen3-8B" = "/models/tokenizer.json"\n')

    read = load_settings(path, {"KAIROS_TOKENIZER": "/elsewhere"}, {})

    assert read.tokenizer == {"Qwen/Qwen3-8B": "/models/tokenizer.json"}


def test_a_model_with_a_dot_in_its_name_must_be_quoted(file):
    assert "`$.tokenizer[...]`" in problem(file("[tokenizer]\nllama-3.1 = '/models/t.json'\n"))


OIDC = '[oidc]\nissuer = "https://login.example"\naudience = "kairos"\n'


def test_an_issuer_of_tokens_comes_from_the_file(file):
    text = OIDC + 'algorithms = ["ES256"]\ntenant_claim = "org"\napp_claim = "azp"\nleeway_s = 5\n'
    settings = load_settings(file(text), {}, {})
    assert settings.oidc == OidcSettings(
        issuer="https://login.example",
        audience="kairos",
        algorithms=("ES256",),
        tenant_claim="org",
        app_claim="azp",
        leeway_s=5,
    )
    assert settings.asks_for_keys


def test_tenants_that_have_tokens_only_may_be_named(file):
    text = OIDC + '[[tenant]]\nname = "a"\nweight = 2\n[[quota]]\ntenant = "a"\ncalls_at_once = 1\n'
    assert load_settings(file(text), {}, {}).tenant[0].name == "a"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('issuer = "login.example"', "oidc.issuer: 'login.example' is not a URL"),
        ('issuer = "https://"', "oidc.issuer: 'https://' is not a URL"),
        ('issuer = "https://x:0/"', "is not a URL"),
        ('issuer = "https://x:y/"', "is not a URL"),
        ('issuer = "http://login.example"', "must begin with https://"),
        ('issuer = "http://10.0.0.1"', "must begin with https://"),
        ('issuer = "https://me:hunter@login.example"', "may have no user"),
        ('jwks_url = "http://login.example/keys"', "oidc.jwks_url: 'http://login.example/keys'"),
        ('jwks_url = "file:///etc/passwd"', "is not a URL"),
        ('audience = ""', "oidc.audience is empty"),
        ("algorithms = []", "oidc.algorithms is empty"),
        ('algorithms = ["HS256"]', "Invalid enum value 'HS256'"),
        ('algorithms = ["none"]', "Invalid enum value 'none'"),
        ("leeway_s = 301", "oidc.leeway_s 301 is out of range (0 to 300)"),
        ("leeway_s = -1", "oidc.leeway_s -1 is out of range"),
        ('role_claim = ""', "oidc.role_claim must have 1 to 256 characters"),
        ('roles = {ops = "admin"}', "oidc.roles needs oidc.role_claim"),
        ('role_claim = "r"\nroles = {ops = "root"}', "Invalid enum value 'root'"),
        ('tenant_claim = ""', "oidc.tenant_claim must have 1 to 256 characters"),
        ('secret = "hunter2"', "unknown field `secret`"),
    ],
)
def test_an_issuer_that_cannot_be_is_refused(file, line, said):
    name = line.partition(" ")[0]
    kept = [each for each in OIDC.splitlines() if not each.startswith(f"{name} ")]
    assert said in problem(file("\n".join([*kept, line])))


def test_an_issuer_on_loopback_may_do_without_tls(file):
    text = '[oidc]\nissuer = "http://127.0.0.1:8080/realms/a"\naudience = "kairos"\n'
    assert load_settings(file(text), {}, {}).oidc.issuer == "http://127.0.0.1:8080/realms/a"


def key_with(role):
    return f'[[key]]\nsha256 = "{DIGEST}"\ntenant = "a"\nrole = "{role}"\n'


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "::", "kairos.internal"])
def test_the_operators_port_leaves_loopback_only_where_something_says_who_is_one(file, host):
    told = problem(file(""), admin_host=host)
    assert told.startswith(f"admin_host {host} can be reached from elsewhere")
    assert "kairos keys create --role admin" in told
    assert problem(file(key_with("caller")), admin_host=host) == told
    assert problem(file(OIDC), admin_host=host) == told
    for text in (key_with("viewer"), key_with("admin"), OIDC + 'role_claim = "roles"\n'):
        settings = load_settings(file(text), {}, {"admin_host": host})
        assert settings.asks_operators
        assert settings.admin_host == host


def test_a_role_that_there_is_not_is_refused(file):
    assert "Invalid enum value 'root'" in problem(file(key_with("root")))


@pytest.mark.parametrize(
    "origin",
    [
        "https://a.example/",
        "a.example",
        "https://A.example",
        "null",
        "*.example",
        "",
        "https://a b",
    ],
)
def test_an_origin_is_written_as_browsers_send_it(origin):
    assert problem(cors_origins=["https://fine.example:8443", origin]).startswith(
        f"cors_origins: '{origin}' is not an origin"
    )


def test_origins_come_from_the_environment_with_commas():
    environ = {"KAIROS_CORS_ORIGINS": "https://a.example, tauri://localhost,*"}
    found = load_settings(None, environ, {}).cors_origins
    assert found == ("https://a.example", "tauri://localhost", "*")


def test_idle_connections_of_clients_outlive_those_of_proxies_unless_said_otherwise():
    assert load_settings(None, {}, {}).client_idle_s > 600  # of Google's load balancers
    assert load_settings(None, {"KAIROS_CLIENT_IDLE_S": "30"}, {}).client_idle_s == 30
    assert problem(client_idle_s=0) == "client_idle_s must be at least 1"


CELLS = """
    bus = "kafka://k:9092"
    pools = ["a", "b"]
    engine = [
        {url = "http://e1:80", pool = "a"},
        {url = "http://e2:80", pool = "b"},
        {url = "http://e3:80", pool = "b"},
    ]
"""


def test_one_file_is_for_gateways_over_pools_and_for_the_balancers_of_each(file):
    path = file(CELLS)
    gateway = load_settings(path, {}, {})
    assert gateway.is_over_pools
    assert len(gateway.own_engines) == 3
    balancer = load_settings(path, {}, {"pool": "b"})
    assert not balancer.is_over_pools
    assert [each.id for each in balancer.own_engines] == ["e2:80", "e3:80"]


def test_engines_without_a_pool_are_those_of_the_process(file):
    path = file('bus = "kafka://k:9092"\npool = "b"\nengine = [{url = "http://e1:80"}]')
    assert [each.id for each in load_settings(path, {}, {}).own_engines] == ["e1:80"]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"bus": "memory"}, "needs --bus kafka://HOST:PORT"),
        ({"pools": ["a"]}, "engine e2:80: write its pool, one of a"),
        ({"pools": ["a", "b", "c"]}, "'c' has no engine; write pool = \"c\" below one"),
        ({"pools": ["a", "b", "b"]}, "'b' is named twice"),
        ({"pools": ["a", "b", "c d"]}, "'c d' is not a valid pool name"),
        ({"pools": [f"p{n}" for n in range(257)]}, "257 pools are too many: at most 256"),
        ({"pool": "c"}, "pool 'c' is not one of pools (a, b)"),
    ],
)
def test_pools_that_cannot_be_served_are_refused(file, wrong, says):
    assert says in problem(file(CELLS), **wrong)


def test_pools_can_be_given_in_the_environment(file):
    path = file(CELLS.replace('pools = ["a", "b"]', ""))
    assert load_settings(path, {"KAIROS_POOLS": "a, b"}, {}).pools == ("a", "b")
