"""Known architectures, small, with random weights: values and gradients are torch's, also of the partitioned program.

``python tests/interop/model_zoo.py`` prints the table.
"""

import re

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
pytest.importorskip("transformers", reason="transformers is not installed: make test-torch")

import model_zoo

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def torchvision_that_works():
    """A build for another torch cannot be imported, and transformers then neither."""
    try:
        import torchvision  # noqa: F401
    except ImportError:
        return
    except RuntimeError as error:
        pytest.skip(f"torchvision does not fit this torch: {error}")


@pytest.mark.parametrize("name", model_zoo.MODELS)
def test_models_are_torchs_and_verified_on_4_by_2(name):
    with model_zoo.precision(name):
        model, forward, gradient, arrays, named = model_zoo.measured(name)
        part, _ = model_zoo.partitioned(model, arrays, named)
    assert forward < 1e-5 and gradient < 1e-5
    assert all(c.source.is_known for c in part.collectives)
    explained = re.split(r"\n +\d+\. ", str(part.explain()))[1:]
    named = re.compile(
        r"in the sharding of input \d+ \((p\[|args|kwargs|a)|in the products at \S+:\d+ .*, which devices"
    )
    assert all(named.search(e) for e in explained), explained
