"""An identity provider on loopback: it publishes its keys, and signs what a test wants signed."""

import asyncio
import base64
import json
import time

from aiohttp import web
from joserfc import jws
from joserfc.jwk import ECKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

ALGORITHMS = ("RS256", "RS512", "PS256", "ES256", "ES384", "ES512", "EdDSA")
_EVERY = [*ALGORITHMS, "Ed25519", "HS256", "none"]


def new_key(alg, kid):
    parameters = {"kid": kid, "use": "sig"}
    if alg == "EdDSA":
        return OKPKey.generate_key("Ed25519", parameters)
    if alg.startswith("ES"):
        curve = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}[alg]
        return ECKey.generate_key(curve, parameters)
    return RSAKey.generate_key(2048, parameters)


def signed(claims, key, alg="RS256", **header):
    """A token; `header` is put into its header, or taken out of it where it is None."""
    told = {"alg": alg, "typ": "JWT", "kid": key.kid} | header
    told = {name: value for name, value in told.items() if value is not None}
    payload = claims if isinstance(claims, bytes) else json.dumps(claims).encode()
    if alg == "EdDSA":  # joserfc warns of the name
        of_name = JWSRegistry.algorithms["Ed25519"]
        parts = b".".join(encoded(each) for each in (json.dumps(told).encode(), payload))
        return (parts + b"." + encoded(of_name.sign(parts, key))).decode()
    registry = JWSRegistry(algorithms=_EVERY, strict_check_header=False)
    return jws.serialize_compact(told, payload, key, registry=registry)


def encoded(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=")


class Issuer:
    """Serves its documents at `url`; `keys` may be changed, and `answer` put in their place."""

    def __init__(self):
        self.keys = [new_key("RS256", "one")]
        self.answer = None  # a coroutine function: what is answered for the keys
        self.discovery = {}  # put into the document
        self.asked = 0  # for keys
        self.asked_once_more = asyncio.Event()
        self.url = ""

    def claims(self, **given):
        now = time.time()
        told = {"iss": self.url, "aud": "kairos", "exp": now + 600, "iat": now, "sub": "agent-7"}
        told |= {"tenant": "acme"} | given
        return {name: value for name, value in told.items() if value is not None}

    def token(self, *, key=None, alg="RS256", header=None, **claims):
        return signed(self.claims(**claims), key or self.keys[0], alg, **(header or {}))

    async def serve_discovery(self, _):
        told = {"issuer": self.url, "jwks_uri": f"{self.url}/keys"} | self.discovery
        return web.json_response(told)

    async def serve_keys(self, request):
        self.asked += 1
        self.asked_once_more.set()
        if self.answer is not None:
            return await self.answer(request)
        return web.json_response({"keys": [each.as_dict(private=False) for each in self.keys]})

    async def start(self, port=0):
        app = web.Application()
        app.router.add_get("/.well-known/openid-configuration", self.serve_discovery)
        app.router.add_get("/keys", self.serve_keys)
        self.runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=0.01
        )
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", port).start()
        self.url = f"http://127.0.0.1:{self.runner.addresses[0][1]}"

    async def stop(self):
        await self.runner.cleanup()
