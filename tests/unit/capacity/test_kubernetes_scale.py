"""The scale subresource, before a server that answers as the Kubernetes API is documented to."""

import http.server
import json
import threading

import pytest

from kairos.capacity.scaled_engines import KubernetesEngines, StatefulSetEngines
from kairos.core import SetupError

PATH = "/apis/apps/v1/namespaces/kairos/statefulsets/vllm/scale"
TOKEN = "eyJhbGciOi.made-up"


class Api(http.server.ThreadingHTTPServer):
    """One StatefulSet's Scale (autoscaling/v1), with the version that each change raises."""

    def __init__(self, replicas):
        self.replicas, self.version, self.asked = replicas, 100, []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def scale(self):
        return {
            "kind": "Scale",
            "apiVersion": "autoscaling/v1",
            "metadata": {
                "name": "vllm",
                "namespace": "kairos",
                "resourceVersion": str(self.version),
            },
            "spec": {"replicas": self.replicas} if self.replicas else {},
            "status": {"replicas": self.replicas, "selector": "app=vllm"},
        }


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self._answer(200, self.server.scale())

    def do_PATCH(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.headers["Content-Type"] == "application/merge-patch+json"
        if body["metadata"]["resourceVersion"] != str(self.server.version):
            self._answer(409, {"kind": "Status", "status": "Failure", "reason": "Conflict"})
            return
        self.server.replicas = body["spec"]["replicas"]
        self.server.version += 1
        self._answer(200, self.server.scale())

    def _answer(self, status, content):
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            status, content = 401, {"kind": "Status", "reason": "Unauthorized"}
        if self.path != PATH:
            status, content = 404, {"kind": "Status", "reason": "NotFound"}
        self.server.asked.append((self.command, status))
        said = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_):
        pass


@pytest.fixture
def api():
    with Api(2) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def engines(api, tmp_path):
    (tmp_path / "token").write_text(TOKEN + "\n")
    return StatefulSetEngines(
        KubernetesEngines(
            namespace="kairos",
            statefulset="vllm",
            url="http://vllm-{ordinal}.vllm.kairos.svc:8000",
            api=api.url,
            token=str(tmp_path / "token"),
        )
    )


def pod(number):
    return f"http://vllm-{number}.vllm.kairos.svc:8000"


def test_one_more_pod_is_asked_for_and_its_url_told(api, engines):
    assert engines.start([]) == pod(2)
    assert api.replicas == 3
    assert api.asked == [("GET", 200), ("PATCH", 200)]


def test_from_none_to_one_although_the_api_leaves_out_a_zero(api, engines):
    api.replicas = 0
    assert engines.start([]) == pod(0)
    assert api.replicas == 1


def test_pods_that_are_there_and_in_the_pool_can_be_stopped(engines):
    assert engines.stoppable([pod(1), "http://elsewhere:8000"]) == [pod(1)]


def test_a_pod_goes_only_with_all_above_it(api, engines):
    engines.start([])
    engines.stop(pod(1))
    assert api.replicas == 3
    engines.stop(pod(2))
    assert api.replicas == 1


def test_a_change_by_somebody_else_meanwhile_is_not_overwritten(api, engines, monkeypatch):
    seen = engines._scale

    def then_changed():
        found = seen()
        api.version += 1
        return found

    monkeypatch.setattr(engines, "_scale", then_changed)
    with pytest.raises(SetupError, match="409"):
        engines.start([])
    assert api.replicas == 2


def test_a_token_is_read_anew_and_never_told(api, engines, tmp_path):
    (tmp_path / "token").write_text("another-secret")
    with pytest.raises(SetupError, match="401") as refused:
        engines.start([])
    assert "another-secret" not in str(refused.value)
    (tmp_path / "token").write_text(TOKEN)
    engines.start([])
    (tmp_path / "token").unlink()
    with pytest.raises(SetupError, match="cannot be read"):
        engines.start([])


def test_an_account_that_may_not_is_told_what_was_answered(tmp_path, api):
    (tmp_path / "token").write_text(TOKEN)
    other = KubernetesEngines(
        namespace="kairos",
        statefulset="other",
        url="http://x-{ordinal}:8000",
        api=api.url,
        token=str(tmp_path / "token"),
    )
    with pytest.raises(SetupError, match="was answered 404"):
        StatefulSetEngines(other).start([])


def test_a_url_without_a_pods_number_is_refused(api):
    wrong = KubernetesEngines(namespace="n", statefulset="s", url="http://x:8000", api=api.url)
    with pytest.raises(SetupError, match="ordinal"):
        StatefulSetEngines(wrong)
