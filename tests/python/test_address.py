"""Tests that scalelab.Client finds the server, and identifies the user, like the command-line client."""
import os
import subprocess
import sys
import time
import unittest
from unittest import mock

import fixture
import scalelab
from scalelab import address, session_token


class ResolveTest(fixture.InDirectory):
    def setUp(self):
        super().setUp()
        for name in list(os.environ):
            if name.startswith(("SCALELAB_", "XDG_")):
                del os.environ[name]
        os.environ.update(HOME=str(self.dir), XDG_CONFIG_DIRS=str(self.dir / "machine"))
        for folder in (".config/scalelab", "machine/scalelab"):
            (self.dir / folder).mkdir(parents=True)

    def texts(self, server=None, token_file=None):
        options = address.resolve(server, token_file)
        return options.text, options.token_file

    def test_the_first_value_that_is_set_counts(self):
        self.assertEqual(self.texts(), (f"unix:{self.dir}/.local/share/scalelab/scalelab.sock", ""))
        os.environ["XDG_DATA_HOME"] = "/d"
        self.assertEqual(self.texts()[0], "unix:/d/scalelab/scalelab.sock")
        self.write("machine/scalelab/config", "server: m:1\ntoken_file = /m  # the lab's\n")
        self.assertEqual(self.texts(), ("m:1", "/m"))
        self.write(".config/scalelab/config", "# mine\n\nserver: 'u:2'\n")
        self.assertEqual(self.texts(), ("u:2", "/m"))
        os.environ.update(SCALELAB_SERVER="e:3", SCALELAB_TOKEN_FILE="/e")
        self.assertEqual(self.texts(), ("e:3", "/e"))
        self.assertEqual(self.texts("a:4", "/a"), ("a:4", "/a"))

    def test_addresses_become_those_of_grpc(self):
        for text, target, encrypted in [("unix:/a/b", "unix:/a/b", False), ("unix:///a", "unix:/a", False), ("h:1", "dns:///h:1", True),
                                        ("insecure:h:1", "dns:///h:1", False), ("[::1]:70", "dns:///[::1]:70", True)]:
            options = address.resolve(text, None)
            self.assertEqual((options.target, options.encrypted), (target, encrypted))

    def test_what_is_no_address_is_refused(self):
        for text in ("host", "host:0", "host:70000", "a/b:1", ":5", "http://h:1"):
            with self.assertRaisesRegex(scalelab.ScalelabError, f"'{text}' is neither unix:PATH nor HOST:PORT"):
                address.resolve(text, None)
        with self.assertRaisesRegex(scalelab.ScalelabError, "has more than 107 bytes"):
            address.resolve("unix:/" + "a" * 120, None)
        path = self.write(".config/scalelab/config", "port: 1\n")
        with self.assertRaisesRegex(scalelab.ScalelabError, f"{path}:1: 'port: 1' is not a setting"):
            address.resolve(None, None)

    def test_the_default_of_studies_is_no_error(self):
        self.write(".config/scalelab/config", "notify: {mail: ada@uni.example}\nserver: h:1\n")
        self.assertEqual(address.resolve(None, None).target, address.resolve("h:1", None).target)
        path = self.write(".config/scalelab/config", "notify\n")
        with self.assertRaisesRegex(scalelab.ScalelabError, f"{path}:1: 'notify' is not a setting"):
            address.resolve(None, None)

    def test_a_damaged_list_of_certificates_is_named(self):
        for line in ("h:1", "h:1 %%%", "h:1 YWJj"):
            path = self.write(".config/scalelab/known_servers", line + "\n")
            with self.assertRaisesRegex(scalelab.ScalelabError, f"{path}:1: the line is not"):
                address.resolve("h:1", None)


class LoginTextTest(unittest.TestCase):
    CHALLENGE = f"scalelab-login-1:1800000000:{'a' * 32}:{'b' * 64}"
    CERTIFICATE = "-----BEGIN CERTIFICATE-----\nYWJj\n-----END CERTIFICATE-----\n"  # "abc"

    def test_a_challenge_is_signed_with_the_certificate(self):
        self.assertEqual(session_token.login_text(self.CHALLENGE, self.CERTIFICATE),
                         self.CHALLENGE + ":ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")

    def test_other_texts_are_not_signed(self):
        for text in ("", "the request of another program", "x" + self.CHALLENGE, self.CHALLENGE + "\n", self.CHALLENGE + ":c",
                     self.CHALLENGE.upper(), self.CHALLENGE.replace("1800000000", "")):
            with self.assertRaisesRegex(scalelab.ScalelabError, "this client does not sign it"):
                session_token.login_text(text, self.CERTIFICATE)


class TcpTest(fixture.InDirectory):
    def setUp(self):
        super().setUp()
        os.environ.update(XDG_CONFIG_HOME=str(self.dir / "config"), XDG_RUNTIME_DIR=str(self.dir / "runtime"))

    def service_of(self, config=""):
        service = fixture.Service(config)
        self.addCleanup(service.close)
        token = service.json("token", "create")["secret"]
        return service, self.write("token", token + "\n"), token

    def test_tls_with_the_accepted_certificate_and_a_personal_token(self):
        service, file, token = self.service_of()
        with self.assertRaisesRegex(scalelab.ScalelabError, "run `scalelab login 127.0.0.1"):
            scalelab.Client(service.tcp, token_file=file)
        service.run("login", service.tcp, "--yes")
        with scalelab.Client(service.tcp, token_file=file) as client:
            self.assertEqual(client.studies(), [])
        with scalelab.Client(service.tcp) as client, self.assertRaisesRegex(scalelab.ScalelabError, "rejects the credentials") as raised:
            client.studies()
        self.assertEqual(raised.exception.code, "UNAUTHENTICATED")
        # A session token in the directory where the command-line client stores them.
        folder = self.dir / "runtime" / "scalelab"
        folder.mkdir(parents=True)
        session = folder / f"session-{service.tcp}"
        session.write_text(f"{int(time.time()) + 600}\n{token}\n")
        session.chmod(0o600)
        with scalelab.Client(service.tcp) as client:
            self.assertEqual(client.studies(), [])

    def test_a_session_is_renewed_before_it_expires_and_when_it_is_refused(self):
        service, _, token = self.service_of()
        service.run("login", service.tcp, "--yes")
        later = time.time() + 600
        good, refused = session_token.SessionToken(token, later), session_token.SessionToken("refused", later)
        with mock.patch.object(session_token, "create") as create, scalelab.Client(service.tcp) as client:
            create.return_value = session_token.SessionToken(token, time.time() + 10)
            self.assertEqual(client.studies(), [])
            create.side_effect = [refused, good]
            self.assertEqual(client.studies(), [])
            for read in (lambda: list(client.points(4711)), lambda: list(client.watch("nothing"))):
                client._connection._session = refused
                create.side_effect = [good]
                with self.assertRaisesRegex(scalelab.ScalelabError, "there is no (study|run)"):
                    read()

    @unittest.skipUnless(fixture.MUNGED.exists(), "needs munged, which deploy/setup --slurm installs")
    def test_a_session_for_a_munge_credential(self):
        munged = fixture.Munged()
        self.addCleanup(munged.close)
        os.environ["SCALELAB_MUNGE_SOCKET"] = munged.socket
        service = fixture.Service(f"munge_socket: {munged.socket}\n")
        self.addCleanup(service.close)
        service.run("login", service.tcp, "--yes")
        with scalelab.Client(service.tcp) as client:
            self.assertEqual(client.studies(), [])
        stored = self.dir / "runtime" / "scalelab" / f"session-{service.tcp}"
        self.assertEqual(stored.stat().st_mode & 0o777, 0o600)
        # The command line uses the same session. A session that was refused is replaced.
        munged.close()
        self.assertEqual(service.run("study", "list", "-o", "csv", server=service.tcp).count("\n"), 1)
        munged = fixture.Munged()
        self.addCleanup(munged.close)
        os.environ["SCALELAB_MUNGE_SOCKET"] = munged.socket
        other = fixture.Service(f"munge_socket: {munged.socket}\n")
        self.addCleanup(other.close)
        other.run("login", other.tcp, "--yes")
        stale = self.dir / "runtime" / "scalelab" / f"session-{other.tcp}"
        stale.write_text(stored.read_text())
        stale.chmod(0o600)
        with scalelab.Client(other.tcp) as client:
            self.assertEqual(client.studies(), [])
        self.assertNotEqual(stale.read_text(), stored.read_text())

    @unittest.skipUnless(fixture.MUNGED.exists(), "needs munged, which deploy/setup --slurm installs")
    def test_a_session_of_a_server_with_a_certificate_that_the_system_trusts(self):
        munged = fixture.Munged()
        self.addCleanup(munged.close)
        service = fixture.Service(f"munge_socket: {munged.socket}\n")
        self.addCleanup(service.close)
        pem = (service.dir / "data" / "tls.pem").read_text()
        roots = self.write("roots.pem", pem[pem.index("-----BEGIN CERTIFICATE-----"):])
        script = "import sys, scalelab\nwith scalelab.Client(sys.argv[1]) as client: print(client.studies())"
        # gRPC reads the variable once in a process.
        done = subprocess.run([sys.executable, "-c", script, service.tcp], capture_output=True, text=True, timeout=fixture.WITHIN,
                              env={**os.environ, "SCALELAB_MUNGE_SOCKET": munged.socket, "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": roots},
                              check=False)
        self.assertEqual(done.stdout, "[]\n", done.stderr)

    def test_another_certificate_than_the_accepted_one_is_refused(self):
        first, file, _ = self.service_of()
        second, _, _ = self.service_of()
        first.run("login", first.tcp, "--yes")
        known = self.dir / "config" / "scalelab" / "known_servers"
        known.write_text(known.read_text().replace(first.tcp, second.tcp))
        with self.assertRaisesRegex(scalelab.ScalelabError, "run `scalelab login"):
            scalelab.Client(second.tcp, token_file=file)

    def test_an_insecure_server_with_a_personal_token(self):
        service, file, _ = self.service_of("insecure: true\n")
        self.assertTrue(service.tcp.startswith("insecure:"))
        with scalelab.Client(service.tcp, token_file=file) as client:
            self.assertEqual(client.studies(), [])

    def test_a_token_file_without_a_token_is_named(self):
        with self.assertRaisesRegex(scalelab.ScalelabError, f"cannot read a token from {self.dir}/none: set token_file"):
            scalelab.Client("insecure:127.0.0.1:1", token_file=self.dir / "none")


if __name__ == "__main__":
    unittest.main()
