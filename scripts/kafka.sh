#!/usr/bin/env bash
# One Apache Kafka node (broker and controller, KRaft) on loopback, in the foreground: for
# development and tests, not for production. Ctrl-C or SIGTERM ends it; what it holds is kept.
#
#   scripts/kafka.sh [--data DIR] [--port PORT] [--controller-port PORT] [--no-docker]
#
# Kafka is taken from KAFKA_HOME (its libs/), else ../shared/kafka, else Docker.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

MISSING=69 # the exit status where there is no Kafka or no Java (EX_UNAVAILABLE)
data=$root/.kafka port=9092 controller='' docker=yes

fail() {
    printf 'kafka: %s\n' "$1" >&2
    exit "${2:-1}"
}

while [ $# -gt 0 ]; do
    case $1 in
        --data) data=${2:?--data needs a directory}; shift 2 ;;
        --port) port=${2:?--port needs a number}; shift 2 ;;
        --controller-port) controller=${2:?--controller-port needs a number}; shift 2 ;;
        --no-docker) docker=no; shift ;;
        *) fail "'$1' is no option; known: --data DIR, --port PORT, --controller-port PORT, --no-docker" ;;
    esac
done
case $port$controller in *[!0-9]*) fail "a port is a number" ;; esac
controller=${controller:-$((port + 1))}

listens() { (: <"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# Beside the node, which takes this process's place: says when it is ready, or why it is not.
report() {
    until listens "$port"; do
        kill -0 $$ 2>/dev/null || { [ -z "$1" ] || tail -n 20 "$1" >&2; fail "it ended while it was starting"; }
        sleep 0.2
    done
    echo "kafka: ready; use --bus kafka://127.0.0.1:$port (Ctrl-C ends it)"
}

java_is_recent() {
    command -v java >/dev/null || return 1
    local version
    version=$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
    [ "${version:-0}" -ge 17 ]
}

has_kafka() { compgen -G "$1/libs/kafka_2.*.jar" >/dev/null; }

! listens "$port" || fail "something listens on 127.0.0.1:$port already; choose another --port"

if [ -n "${KAFKA_HOME:-}" ]; then
    home=$KAFKA_HOME
    has_kafka "$home" || fail "KAFKA_HOME=$home holds no Kafka (no libs/kafka_2.*.jar)"
elif has_kafka "$root/../shared/kafka"; then
    home=$root/../shared/kafka
elif [ $docker = yes ] && docker compose version >/dev/null 2>&1; then
    [ "$port" = 9092 ] || fail "Kafka in Docker listens on port 9092; for another set KAFKA_HOME"
    echo "kafka: starting in Docker (deploy/docker-compose.yml)"
    report '' &
    exec docker compose -f "$root/deploy/docker-compose.yml" up kafka
else
    fail "no Kafka here. Unpack one from https://kafka.apache.org/downloads (4.0 or newer), set
KAFKA_HOME to where it is, and have Java 17 or newer; or install Docker with Compose." $MISSING
fi
java_is_recent || fail "Kafka needs Java 17 or newer on the PATH ('apt-get install openjdk-17-jre-headless')." $MISSING

mkdir -p "$data"
data=$(cd "$data" && pwd)
config=$data/server.properties log=$data/kafka.log
cat >"$config" <<END
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:$controller
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$controller
advertised.listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$controller
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs=$data/logs
# A topic with the wrong settings loses messages silently: Kairos creates its own, and checks them.
auto.create.topics.enable=false
# One node can keep one copy.
default.replication.factor=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=8
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
# Quick to join, to notice who is gone and to be back after a crash. A cluster keeps its defaults.
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=2000
log.cleaner.backoff.ms=500
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
END

# The serial collector and the quick compiler: it shares a machine with what it is there for.
quick=(-XX:+UseSerialGC -XX:TieredStopAtLevel=1)

if [ ! -f "$data/logs/meta.properties" ]; then
    # As Kafka's own `random-uuid` makes them, without the second that a Java takes to begin.
    id=$(head -c 16 /dev/urandom | base64 | tr '+/' 'ab' | tr -d '=\n')
    java "${quick[@]}" -cp "$home/libs/*" kafka.tools.StorageTool format --standalone -t "$id" -c "$config" \
        >"$log" 2>&1 ||
        { cat "$log" >&2; fail "the directory $data cannot be formatted"; }
fi

echo "kafka: starting; data in $data, its log in kafka.log there"
report "$log" &
read -ra heap <<<"${KAFKA_HEAP_OPTS:--Xmx256m}"
read -ra more <<<"${KAFKA_OPTS:-}"
exec java "${heap[@]}" "${quick[@]}" "${more[@]}" -cp "$home/libs/*" kafka.Kafka "$config" >"$log" 2>&1
