"""A Prometheus with what exporters would have told it: behind an API server, and by itself."""

from __future__ import annotations

import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

_MATCHER = re.compile(r'(\w+)=~"([^"]*)"')


class FakePrometheus:
    """Instant queries of selectors joined by `or`; nothing else of PromQL."""

    def __init__(self) -> None:
        self.series: list[tuple[dict[str, str], str]] = []
        self.queries: list[str] = []
        self.broken: Any = None
        """What it answers instead; bytes as they are, at an address of its own."""

    def add(self, name: str, value: float | str, **labels: str) -> None:
        self.series.append(({"__name__": name, **labels}, str(value)))

    def arenas(self, pod: str, node: str, *gpus: tuple[int, float, int], space: str = "default"):
        """What arena's exporter says of a pod: (index, duty cycle, used MiB) of 16 GiB V100s."""
        for index, duty, used in gpus:
            labels = {
                "pod_name": pod,
                "namespace_name": space,
                "node_name": node,
                "minor_number": str(index),
                "uuid": f"GPU-{node}-{index}",
                "allocate_mode": "exclusive",
            }
            self.add("nvidia_gpu_duty_cycle", duty, **labels)
            self.add("nvidia_gpu_memory_used_bytes", used << 20, **labels)
            self.add("nvidia_gpu_memory_total_bytes", 16160 << 20, **labels)

    def dcgms(
        self,
        node: str,
        *gpus: tuple[int, float, int],
        pod: str = "",
        space: str = "default",
        honors: bool = True,
    ) -> None:
        """What dcgm-exporter says; `honors`: Prometheus leaves its labels as they are."""
        for index, duty, used in gpus:
            labels = {
                "gpu": str(index),
                "UUID": f"GPU-{node}-{index}",
                "device": f"nvidia{index}",
                "modelName": "Tesla V100-SXM2-16GB",
                "Hostname": node,
                "instance": "10.0.0.1:9400",
            }
            own = {"namespace": "gpu-operator", "pod": "nvidia-dcgm-exporter-x7k2p"}
            users = {"namespace": space, "pod": pod} if pod else {}
            if honors:
                labels |= {**own, **users}
            else:
                labels |= {**own, **{f"exported_{key}": value for key, value in users.items()}}
            self.add("DCGM_FI_DEV_GPU_UTIL", duty, **labels)
            self.add("DCGM_FI_DEV_FB_USED", used, **labels)
            self.add("DCGM_FI_DEV_FB_FREE", 16160 - used, **labels)

    def answer(self, query: str) -> Any:
        """The JSON that Prometheus answers a query with."""
        self.queries.append(query)
        if self.broken is not None:
            return self.broken
        wanted = [_MATCHER.findall(one) for one in query.split(" or ")]
        assert all(wanted), query
        result = [
            {"metric": labels, "value": [time.time(), value]}
            for labels, value in self.series
            if any(
                all(re.fullmatch(form, labels.get(name, "")) for name, form in matchers)
                for matchers in wanted
            )
        ]
        return {"status": "success", "data": {"resultType": "vector", "result": result}}


class Served:
    """A Prometheus at an address of its own; `status` and `delay` are how it answers."""

    def __init__(self, prometheus: FakePrometheus) -> None:
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.status = 200
        self.delay = 0.0
        served = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                split = urlsplit(self.path)
                served.paths.append(split.path)
                served.headers.append({key.lower(): value for key, value in self.headers.items()})
                time.sleep(served.delay)
                said = prometheus.answer(parse_qs(split.query)["query"][0])
                body = said if isinstance(said, bytes) else json.dumps(said).encode()
                self.send_response(served.status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        # Clients may leave before they are answered.
        self._server.handle_error = lambda *_: None
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
