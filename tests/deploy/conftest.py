"""The deployment tests use the processes of the end-to-end tests, as containers of pods."""

import pytest

from tests.deploy.kubelet import Kubelet
from tests.e2e.conftest import Service, service, whole_service  # noqa: F401


@pytest.fixture
def kubelet(service: Service) -> Kubelet:  # noqa: F811
    """Its pods end with the service's processes."""
    service.environment["CALLBOARD_ACTORS"] = "fault_jobs"
    return Kubelet(service)
