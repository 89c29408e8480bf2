"""One AWS account for read-only commands: credentials of a profile or a role, its regions, and a limit of calls."""

import os
import threading
from collections.abc import MutableMapping, Sequence
from typing import Any, Final

import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from gpufleet.clouds.aws.calls import BROKEN, AwsCalls, load
from gpufleet.clouds.aws.instance_parser import lean
from gpufleet.clouds.aws.moments import moment
from gpufleet.clouds.call_pace import CallPace
from gpufleet.clouds.progress import Touch
from gpufleet.domain.activity import CloudError

HOME: Final = "us-east-1"
"""Region of calls about the whole account."""
MFA: Final = "MfaCode"
"""Code of a CloudError if a profile needs an MFA code that is missing or wrong."""
# the scan gives up a region without an answer before that, and names it
_CONFIG: Final = Config(
    retries={"mode": "standard", "total_max_attempts": 3}, connect_timeout=5, read_timeout=30, max_pool_connections=4
)


class AwsAccount:
    """An account that the credentials of a profile or of an assumed role belong to."""

    def __init__(self, profile: str | None = None, role: str | None = None, pace: CallPace | None = None) -> None:
        """`role`: ARN of a role that the credentials assume."""
        self.profile, self._role = profile, role
        self._pace = pace or CallPace()
        self._base: Any = None
        """The session of the profile."""
        self._session: Any = None
        self._not_logged_in: CloudError | None = None
        self._making = threading.Lock()

    @property
    def name(self) -> str:
        """The name before the account's id is known."""
        return self._role or self.profile or "default credentials"

    def log_in(self) -> None:
        """Ask for the MFA code, if the profile needs one. For the main thread, before other threads read.

        A thread that the scan gives up would leave the terminal without echo. A failure is one of the account.
        """
        if not _needs_code(self.profile):
            return
        try:
            session = self._base_session()
            credentials = load(session, HOME, self.profile)
            if credentials is None or credentials.method != _ASSUME_ROLE:
                return  # keys of the environment take precedence
            if not _has_terminal():
                name = session.get_config_variable("profile")
                raise CloudError(
                    f"AWS profile {name!r} needs an MFA code, and there is no terminal to ask for it: run the command"
                    f" in a terminal, or with the keys of `aws configure export-credentials --profile {name}`",
                    MFA,
                )
            credentials.get_frozen_credentials()
        except CloudError as error:
            self._not_logged_in = error
        except (ClientError, *BROKEN) as error:
            self._not_logged_in = CloudError(f"the MFA code was not accepted; run the command again: {error}", MFA)

    def identity(self, touch: Touch) -> str:
        """Return the account id. Raises CloudError: no credentials, expired ones, no answer."""
        return str(self.calls(HOME, touch).one("sts", "get_caller_identity")["Account"])

    def regions(self, touch: Touch) -> Sequence[str]:
        """Return the enabled regions. Raises CloudError."""
        found = self.calls(HOME, touch).one("ec2", "describe_regions").get("Regions", ())
        return sorted(str(one["RegionName"]) for one in found)

    def calls(self, region: str, touch: Touch) -> AwsCalls:
        """Return the calls of one region. `touch` is called when a request begins and when an answer is complete."""
        return AwsCalls(region, lambda service: self._client(service, region, touch))

    def _client(self, service: str, region: str, touch: Touch) -> Any:
        def before(**_: object) -> None:
            touch()
            self._pace.wait()
            touch()

        def after(**_: object) -> None:
            # 17 regions share one interpreter: the time that their answers take to process is not the cloud's
            touch(waits=False)

        with self._making:
            client = self._made_session().create_client(service, region_name=region, config=_CONFIG)
        client.meta.events.register("before-send.*.*", before)
        client.meta.events.register("response-received.*.*", after)
        return lean(client) if service == "ec2" else client

    def _made_session(self) -> Any:
        """The session, with the credentials of the role. Raises CloudError."""
        if self._not_logged_in is not None:
            raise self._not_logged_in
        if self._session is None:
            session = self._base_session()
            self._session = session if self._role is None else self._assumed(session, self._role)
        return self._session

    def _base_session(self) -> Any:
        if self._base is None:
            self._base = _session(self.profile)
        return self._base

    @staticmethod
    def _assumed(session: Any, role: str) -> Any:
        try:
            sts = session.create_client("sts", region_name=HOME, config=_CONFIG)
            given = sts.assume_role(RoleArn=role, RoleSessionName="gpufleet-scan")["Credentials"]
        except ClientError as error:
            detail = error.response.get("Error", {})
            code = str(detail.get("Code", ""))
            message = f"sts:assume_role of {role} was refused: {code}: {detail.get('Message', error)}"
            raise CloudError(message, code) from error
        except BotoCoreError as error:
            raise CloudError(f"sts:assume_role of {role} failed: {error}") from error
        assumed = _session(None)
        assumed.set_credentials(given["AccessKeyId"], given["SecretAccessKey"], given["SessionToken"])
        return assumed


_LOADING: Final = threading.Lock()
_LOADERS: Final[list[Any]] = []
_ASSUME_ROLE: Final = "assume-role"
"""botocore's name for profiles with a role."""
_ASSUMED: Final[MutableMapping[str, Any]] = {}
"""Credentials of roles of profiles: an MFA code is asked for once."""


def _loader(session: Any) -> Any:
    if not _LOADERS:
        _LOADERS.append(session.get_component("data_loader"))
    return _LOADERS[0]


def _session(profile: str | None) -> Any:
    """A session of botocore, whose types are incomplete. Raises CloudError if its credentials cannot be loaded."""
    make: Any = botocore.session.Session
    try:
        session = make(profile=profile)
        with _LOADING:
            # each loader keeps its own copy of the API descriptions: 50 accounts share one
            session.register_component("data_loader", _loader(session))
        session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=moment)
        session.get_component("credential_provider").get_provider(_ASSUME_ROLE).cache = _ASSUMED
        load(session, HOME, profile)
    except BotoCoreError as error:
        named = profile or os.environ.get("AWS_PROFILE") or "default"
        raise CloudError(f"AWS profile {named!r}: {error}", type(error).__name__) from error
    return session


def _needs_code(profile: str | None) -> bool:
    """Whether the role of the profile, or of one that it gets its credentials from, needs an MFA code."""
    make: Any = botocore.session.Session
    session = make(profile=profile)
    try:
        profiles: dict[str, dict[str, str]] = session.full_config["profiles"]
    except BotoCoreError:
        return False  # the scan names the failure
    name, seen = session.get_config_variable("profile") or "default", set[str]()
    while name in profiles and name not in seen:
        seen.add(name)
        if {"role_arn", "mfa_serial"} <= profiles[name].keys():
            return True
        name = profiles[name].get("source_profile", "")
    return False


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def has_default_credentials() -> bool:
    """Whether the usual chain (environment, files, container, machine) has credentials, or names a profile.

    A profile that does not exist, as in AWS_PROFILE, is an error of the scan.
    """
    try:
        return _session(None).get_credentials() is not None
    except CloudError:
        return True
