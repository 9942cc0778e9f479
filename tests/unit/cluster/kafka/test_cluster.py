"""How a cluster is reached: addresses, options of the client, and secrets that stay secret."""

import pytest

from kairos.cluster import KafkaCluster, Producer, cluster_of
from kairos.cluster.kafka.cluster import OWNED, parse_bus
from kairos.cluster.kafka.subscription import Subscription
from kairos.core import SetupError
from kairos.settings import Settings, load_settings

SECRET = "hunter2"
SCRAM = """
    bus = "kafka://h:1"
    [kafka]
    "security.protocol" = "SASL_SSL"
    "sasl.mechanism" = "SCRAM-SHA-512"
    "sasl.username" = "kairos"
    "sasl.password_env" = "KAFKA_PASSWORD"
"""
CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBdTCCARugAwIBAgIUDx/B1W9r2l/dUC2CqA60HgvAs5QwCgYIKoZIzj0EAwIw
DzENMAsGA1UEAwwEdGVzdDAgFw0yNjExMjEwMzUyNDJaGA8yMTI2MTAyODAzNTI0
MlowDzENMAsGA1UEAwwEdGVzdDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABK4v
5EIT0t175h0Wm0nGytIn/Pm8HUyKFXaeYxWR9YE8gdeke9a4MpUXA+WDn08qxNe3
8RcAzVZbBe1mQ0jGlK6jUzBRMB0GA1UdDgQWBBRT3ytFV8wzqo+NVDNa0RIiFNKl
ojAfBgNVHSMEGDAWgBRT3ytFV8wzqo+NVDNa0RIiFNKlojAPBgNVHRMBAf8EBTAD
AQH/MAoGCCqGSM49BAMCA0gAMEUCIQDRknZkaf1K4E+maJPeVc+K1HbaK3QCPrrE
zKhp8rlmhwIgNnpYC7b4E0LxL+a+7TCVA6iQQ61+QrgaQm/gyRDuxco=
-----END CERTIFICATE-----
"""


@pytest.fixture
def file(tmp_path):
    """Writes a settings file, readable by us alone, and returns its path."""

    def write(text, mode=0o600):
        path = tmp_path / "kairos.toml"
        path.write_text(text)
        path.chmod(mode)
        return path

    return write


def reach(kafka, environ=None, bus="kafka://h:1"):
    return cluster_of(Settings(bus=bus, kafka=kafka), environ or {})


def problem(kafka, environ=None):
    with pytest.raises(SetupError) as refused:
        reach(kafka, environ)
    return str(refused.value)


def test_a_bus_in_memory_needs_no_cluster():
    assert cluster_of(Settings(), {}) is None


@pytest.mark.parametrize(
    ("url", "servers"),
    [
        ("kafka://127.0.0.1:9092", "127.0.0.1:9092"),
        ("kafka://127.0.0.1:9092/", "127.0.0.1:9092"),
        (
            "kafka://kafka-0.kafka.ns.svc:9093,kafka-1:9093",
            "kafka-0.kafka.ns.svc:9093,kafka-1:9093",
        ),
        ("kafka://[::1]:9092", "[::1]:9092"),
    ],
)
def test_an_address_is_host_and_port(url, servers):
    assert parse_bus(url) == KafkaCluster(servers=servers)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "Memory",
        "kafka:",
        "kafka://",
        "kafka://h",
        "kafka://h:",
        "kafka://h:0",
        "kafka://h:65536",
        "kafka://h:1,",
        "kafka://h:1/topic",
        "kafka://h 2:1",
        "http://h:1",
        "h:1",
    ],
)
def test_what_is_no_address_is_answered_with_the_syntax(url):
    with pytest.raises(SetupError) as refused:
        parse_bus(url)

    assert str(refused.value) == f"--bus {url}: write memory or kafka://HOST:PORT[,HOST:PORT]"


def test_a_password_in_the_address_is_not_repeated():
    with pytest.raises(
        SetupError, match=r"put user and password into the table \[kafka\]"
    ) as refused:
        parse_bus(f"kafka://user:{SECRET}@h:1")

    assert SECRET not in str(refused.value)


def test_bus_and_pool_can_come_from_the_environment():
    settings = load_settings(None, {"KAIROS_BUS": "kafka://h:1", "KAIROS_POOL": "gpu-a"}, {})

    assert (settings.bus, settings.pool) == ("kafka://h:1", "gpu-a")


@pytest.mark.parametrize("pool", ["", "a.b", "a b", "a/b", "a\n", "a" * 65, "é", "-a"])
def test_a_pools_name_is_plain_and_short(pool):
    with pytest.raises(SetupError, match="is not a valid pool name"):
        load_settings(None, {}, {"pool": pool})


def test_options_for_sasl_over_tls_reach_the_client_with_the_secret_from_the_environment(file):
    settings = load_settings(file(SCRAM), {}, {})

    client = cluster_of(settings, {"KAFKA_PASSWORD": SECRET}).client(group_id="g")

    assert (
        client.items()
        >= {
            "bootstrap.servers": "h:1",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "kairos",
            "sasl.password": SECRET,
            "group.id": "g",
        }.items()
    )


def test_dotted_names_need_no_quotes_and_values_need_none_either(file):
    path = file("""
        bus = "kafka://h:1"
        [kafka]
        security.protocol = "SASL_SSL"
        sasl.password_env = "KAFKA_PASSWORD"
        socket.keepalive.enable = true
        socket.timeout.ms = 5000
    """)

    assert load_settings(path, {}, {}).kafka == {
        "security.protocol": "SASL_SSL",
        "sasl.password_env": "KAFKA_PASSWORD",
        "socket.keepalive.enable": "true",
        "socket.timeout.ms": "5000",
    }


@pytest.mark.parametrize("value", ["[1]", "1979-05-27", "[{a = 1}]"])
def test_a_value_that_is_no_option_is_named(file, value):
    with pytest.raises(SetupError, match=r"--config .*\$\.kafka"):
        load_settings(file(f'[kafka]\n"client.id" = {value}'), {}, {})


def test_certificates_reach_the_client(tmp_path):
    authority = tmp_path / "ca.pem"
    authority.write_text(CERTIFICATE)
    options = {
        "security.protocol": "SSL",
        "ssl.ca.location": str(authority),
        "ssl.endpoint.identification.algorithm": "https",
    }

    assert reach(options).client().items() >= options.items()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sasl.pasword": "x"}, 'No such configuration property: "sasl.pasword"'),
        ({"security.protocol": "TLS"}, 'Invalid value "TLS" for configuration property'),
        ({"socket.timeout.ms": "soon"}, 'property "socket.timeout.ms"'),
        ({"security.protocol": "SSL", "ssl.ca.location": "/missing.pem"}, "ssl.ca.location failed"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"},
            "sasl.username and sasl.password must be set",
        ),
        (
            {"sasl.mechanism": "PLAIN"},
            "'sasl.mechanism' has no effect: security.protocol is plaintext",
        ),
        (
            {"security.protocol": "sasl_plaintext", "ssl.ca.location": "/ca.pem"},
            "'ssl.ca.location' has no effect: security.protocol is sasl_plaintext",
        ),
        ({"error_cb": "x"}, "'error_cb' is not an option of the Kafka client (librdkafka)"),
        ({"bootstrap.servers": "h:2"}, "'bootstrap.servers': that is what --bus is for"),
        ({"client.id": "a", "client.id_env": "B"}, "sets 'client.id' twice"),
        ({"client.id_env": "UNSET"}, "client.id_env: the variable UNSET is not set"),
    ],
)
def test_an_option_that_is_no_use_is_named_with_the_reason(options, said):
    options = {"security.protocol": "SASL_SSL"} | options if "sasl.pasword" in options else options

    message = problem(options, {"B": "b"})

    assert message.startswith("[kafka] ")
    assert said in message


@pytest.mark.parametrize("option", sorted(OWNED))
def test_what_kairos_relies_on_cannot_be_set(option):
    assert problem({option: "1"}).startswith(f"[kafka] cannot have '{option}': ")


def test_what_our_clients_set_is_what_cannot_be_set():
    """An option that a client of ours sets over the user's would be ignored without a word."""
    ours = set()

    class Watched(KafkaCluster):
        def client(self, **settings):
            ours.update(name.replace("_", ".") for name in settings)
            return super().client(**settings)

    watched = Watched(servers="h:1")
    Producer(watched)
    Subscription(watched, ["t"], "g")

    assert ours
    assert ours <= OWNED


SECRET_OPTIONS = (
    "sasl.password",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.config",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.password",
)


@pytest.mark.parametrize("option", SECRET_OPTIONS)
def test_a_secret_is_in_no_message_and_no_repr(option):
    kafka = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256", option: SECRET}
    settings = Settings(bus="kafka://h:1", kafka=kafka)

    assert SECRET not in repr(settings)
    assert SECRET not in repr(KafkaCluster(servers="h:1", options=kafka))
    assert SECRET not in problem(kafka | {"security.protocol": "TLS"})
    assert SECRET not in problem(kafka | {"ssl.ca.location": "/missing.pem"})


@pytest.mark.parametrize("option", SECRET_OPTIONS)
def test_a_secret_in_a_file_that_others_can_read_is_refused(file, option):
    text = f'[kafka]\n"{option}" = "{SECRET}"'

    for mode in (0o644, 0o640, 0o604):
        with pytest.raises(SetupError) as refused:
            load_settings(path := file(text, mode), {}, {})
        assert str(refused.value) == (
            f"--config {path} holds '{option}' and others can read it: 'chmod 600 {path}', or "
            f'write "{option}_env" = "VARIABLE" and put it into the environment'
        )
    assert load_settings(file(text), {}, {}).kafka == {option: SECRET}


def test_the_name_of_a_variable_is_no_secret(file):
    assert load_settings(file(SCRAM, 0o644), {}, {}).kafka["sasl.password_env"] == "KAFKA_PASSWORD"


@pytest.mark.parametrize("environ", [{}, {"KAFKA_PASSWORD": ""}])
def test_a_secret_that_is_not_in_the_environment_is_named_with_the_variable(file, environ):
    settings = load_settings(file(SCRAM), {}, {})

    with pytest.raises(SetupError) as refused:
        cluster_of(settings, environ)

    assert str(refused.value) == (
        "[kafka] sasl.password_env: the variable KAFKA_PASSWORD is not set"
    )
