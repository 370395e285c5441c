"""`pyromq proxy`: runs the proxy for RocketMQ 5's clients."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyromq.cli import run_servers, tls_settings
from pyromq.cli.command_tree import Command
from pyromq.cli.connection_options import connections, metrics_options, namesrv_option
from pyromq.cli.ranges import Folder, WholeNumber
from pyromq.cli.server_properties import metrics_config
from pyromq.client.cluster.environment import CA, CERT, CHECK_HOST, KEY
from pyromq.errors import UsageError
from pyromq.extras import install_command, is_installed
from pyromq.net.tls.tls_server import ClientCertificates, ServerTlsConfig, TlsMode

if TYPE_CHECKING:
    from pyromq.metrics.config import MetricsConfig
    from pyromq.proxy.proxy_config import ProxyConfig

GRPC_PORT = 8081
_FILE = click.Path(exists=True, dir_okay=False)
_FOLDER = Folder()


@click.command(cls=Command)
@namesrv_option
@click.option("--host", default="127.0.0.1", show_default=True, metavar="IP", help="Address to listen on.")
@click.option("--port", type=WholeNumber(0, 65535), metavar="PORT", help=f"[default: {GRPC_PORT}; 0: any free]")
@click.option(
    "--advertise",
    metavar="HOST:PORT",
    help="Address given to clients. [default: the one that each client asked]",
)
@click.option(
    "--acl",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of ACL files, the brokers' own or a copy: clients need an account. [default: no accounts]",
)
@click.option(
    "--data",
    type=_FOLDER,
    default=Path("pyromq-data") / "proxy",
    show_default=True,
    help="Folder of the self-signed certificate.",
)
@click.option(
    "--tls-mode",
    type=click.Choice([TlsMode.PERMISSIVE.value, TlsMode.ENFORCING.value]),
    default=TlsMode.PERMISSIVE.value,
    show_default=True,
    help="Accept plain connections and TLS, or TLS only.",
)
@click.option(
    "--server-cert", type=_FILE, metavar="FILE", help="Server certificate (PEM). [default: a self-signed one]"
)
@click.option("--server-key", type=_FILE, metavar="FILE", help="Private key of --server-cert, if in another file.")
@click.option(
    "--client-certs",
    type=click.Choice([each.value for each in ClientCertificates]),
    default=ClientCertificates.NONE.value,
    show_default=True,
    help="Whether clients must show certificates; needs --server-cert.",
)
@click.option("--client-ca", type=_FILE, metavar="FILE", help="Authority of client certificates (PEM).")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
    default="warning",
    show_default=True,
    help="Lowest level logged to standard error.",
)
@metrics_options
# used by `serve`: when it ends, the input closes
@click.option("--ends-with-input", is_flag=True, hidden=True)
@click.option("--listening", type=int, hidden=True)  # used by `serve`: descriptor of the listening socket
def proxy(
    log_level: str, ends_with_input: bool, metrics_port: int | None, metrics_host: str | None, **options: Any
) -> None:
    """Run a proxy for clients of RocketMQ 5 (gRPC), on loopback, until Ctrl-C.

    Name servers and brokers behind it may be pyromq's or Java's, of version 4.9 or 5.
    """
    check_installed()
    metrics = metrics_config({}, port=metrics_port, host=metrics_host)
    serving = run_servers.serve_proxy(_config(**options), metrics, ends_with_input=ends_with_input)
    run_servers.run(serving, log_level)


def _config(
    *,
    namesrv: str,
    port: int | None,
    advertise: str | None,
    tls_mode: str,
    server_cert: str | None,
    server_key: str | None,
    client_certs: str,
    client_ca: str | None,
    listening: int | None,
    **options: Any,
) -> ProxyConfig:
    from pyromq.proxy.proxy_config import ProxyConfig

    if not server_cert:
        given = {"--tls-mode enforcing": tls_mode == TlsMode.ENFORCING.value, "--server-key": server_key}
        given |= {"--client-certs": client_certs != ClientCertificates.NONE.value, "--client-ca": client_ca}
        if missing := next((option for option, value in given.items() if value), None):
            raise click.UsageError(f"{missing} needs a certificate of the server: give one with --server-cert")
    properties = {
        tls_settings.MODE: tls_mode,
        tls_settings.CERTIFICATE: server_cert or "",
        tls_settings.KEY: server_key or "",
        tls_settings.CLIENT_CERTIFICATES: client_certs,
        tls_settings.AUTHORITY: client_ca or "",
        tls_settings.PASSWORD: os.environ.get(tls_settings.PASSWORD_VARIABLE, ""),
    }
    return ProxyConfig(
        namesrv=namesrv,
        port=GRPC_PORT if port is None else port,
        advertised=advertise,
        tls=tls_settings.server_tls(properties) if server_cert else None,
        connections=connections(waits=True),
        listening=None if listening is None else socket.socket(fileno=listening),
        **options,
    )


def is_proxy_installed() -> bool:
    return is_installed("hpack", "google.protobuf", "cryptography")


def check_installed() -> None:
    """Raise `UsageError` with the install command if a package of the proxy is missing."""
    if not is_proxy_installed():
        raise UsageError(f"the proxy needs more packages; to install them: {install_command('grpc')}")


def command_beside_servers(
    data: Path, tls: ServerTlsConfig | None, metrics: MetricsConfig | None, *, acl: Path | None, log_level: str
) -> tuple[list[str], dict[str, str]]:
    """Return the command line, and environment variables, of a proxy beside name server and broker of this process."""
    command = [sys.executable, "-m", "pyromq", "proxy", "--ends-with-input", "--data", str(data / "proxy")]
    command += ["--log-level", log_level]
    variables = {}
    if metrics is not None:
        command += ["--metrics-port", str(metrics.port), "--metrics-host", metrics.host]
    if acl is not None:
        command += ["--acl", str(acl)]
    if tls is not None and tls.mode is not TlsMode.DISABLED:
        command += ["--server-cert", str(tls.certificate), "--tls-mode", tls.mode.value]
        command += ["--server-key", str(tls.key)] if tls.key is not None else []
        command += ["--client-certs", tls.client_certificates.value]
        command += ["--client-ca", str(tls.authority)] if tls.authority is not None else []
        variables = {tls_settings.PASSWORD_VARIABLE: tls.password} if tls.password else {}
        if (own := tls_settings.same_process_tls(tls)) is not None:
            variables |= {CA: str(own.authority), CHECK_HOST: "false"}
            variables |= {CERT: str(own.certificate)} | ({KEY: str(own.key)} if own.key is not None else {})
    return command, variables
