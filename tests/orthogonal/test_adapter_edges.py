"""Adapters where something stands in between: wrappers, failures halfway, formats, methods."""

import copy

import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere.orthogonal.adapters import read
from hypersphere.orthogonal.rotation import rotations
from tolerances import close

X = torch.randn(5, 6, generator=torch.Generator().manual_seed(7))


def base(seed: int = 0, classes: int = 3) -> nn.Sequential:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh())
    return net.append(nn.Linear(4, classes)).requires_grad_(False)


def tuned(method: str = "cayley", seed: int = 1, head: bool = True, **options) -> nn.Sequential:
    """The base with rotations, and perhaps an output layer, that have moved."""
    net = hs.orthogonal.rotate(base(), method, start="identity", **options)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for *_, rotation in rotations(net):
            for p in rotation.map.parameters():
                p.add_(0.02 * torch.randn(p.shape, generator=generator))
        if head:
            net[4].requires_grad_(True)
            net[4].weight.add_(torch.randn(net[4].weight.shape, generator=generator))
    return net


def test_tasks_change_everything_under_a_wrapper_too(tmp_path):
    hs.orthogonal.save_adapter(tuned(), tmp_path)
    net = base()
    before = net(X)
    hs.orthogonal.load_adapter(net, tmp_path, task="one")
    after = net(X)
    wrapped = nn.Sequential(net)  # as DDP, DataParallel or a LightningModule hold it
    assert torch.equal(hs.orthogonal.use_task(wrapped, "default")(X), before)
    assert torch.equal(hs.orthogonal.use_task(wrapped, "one")(X), after)


def test_a_data_parallel_model_has_the_names_of_the_model(tmp_path):
    net = tuned()
    hs.orthogonal.save_adapter(nn.DataParallel(net), tmp_path)
    assert torch.equal(hs.orthogonal.load_adapter(base(), tmp_path)(X), net(X))


def test_fold_ends_all_tasks(tmp_path):
    hs.orthogonal.save_adapter(tuned(), tmp_path / "one")
    net = hs.orthogonal.load_adapter(base(), tmp_path / "one", task="one")
    plain = copy.deepcopy(hs.orthogonal.fold(net))
    hs.orthogonal.rotate(net, start="identity")
    hs.orthogonal.save_adapter(net, tmp_path / "two")
    assert not read(tmp_path / "two").values  # nothing else was trained since
    hs.orthogonal.use_task(hs.orthogonal.add_task(net, "one"), "one")
    close(net(X), plain(X))
    close(hs.orthogonal.load_adapter(plain, tmp_path / "two")(X), net(X))


def test_a_refused_adapter_leaves_the_very_parameters(tmp_path):
    hs.orthogonal.save_adapter(tuned(), tmp_path)
    net = base(classes=2).requires_grad_(True)
    before = {name: (p, p.data_ptr()) for name, p in net.named_parameters()}
    with pytest.raises(ValueError, match=r"4.bias is \(2,\) here"):
        hs.orthogonal.load_adapter(net, tmp_path, check_base=False)
    for name, p in net.named_parameters():
        assert p is before[name][0] and p.data_ptr() == before[name][1] and p.requires_grad


def test_a_function_in_the_way_is_found_before_anything_changes(tmp_path):
    hs.orthogonal.save_adapter(tuned(head=False, targets=("0",)), tmp_path)
    net = hs.orthogonal.rotate(base(), lambda v: 2 * v, start="identity", targets=("2",))
    keys = list(net.state_dict())
    with pytest.raises(ValueError, match="a function of your own"):
        hs.orthogonal.load_adapter(net, tmp_path, task="one", check_base=False)
    assert list(net.state_dict()) == keys


def test_options_that_differ_are_named_as_they_are(tmp_path):
    hs.orthogonal.save_adapter(tuned(learn_lengths=True), tmp_path)
    with pytest.raises(ValueError, match="learn_lengths=False here, with learn_lengths=True there"):
        hs.orthogonal.load_adapter(tuned(), tmp_path, check_base=False)


@pytest.mark.parametrize("first", ["cayley", "householder", "gram_schmidt"])
@pytest.mark.parametrize("second", ["cayley", "householder"])
def test_the_mean_of_maps_that_start_elsewhere(first, second, tmp_path):
    one, two = tuned(first, head=False), tuned(second, seed=2, head=False)
    hs.orthogonal.save_adapter(one, tmp_path / "one")
    hs.orthogonal.save_adapter(two, tmp_path / "two")
    merged = hs.orthogonal.merge([tmp_path / "one", tmp_path / "two"])
    net = hs.orthogonal.load_adapter(base(), merged)
    for i in (0, 2):  # near the identity, the mean of weights is close to that of rotations
        mean = (one[i].weight + two[i].weight) / 2
        apart = (one[i].weight - two[i].weight).abs().max()
        assert (net[i].weight - mean).abs().max() < 0.05 * apart


def test_a_mean_keeps_the_base_that_one_of_them_knows(tmp_path):
    net = tuned(head=False)
    hs.orthogonal.save_adapter(net, tmp_path / "own")
    hs.orthogonal.save_adapter(net, tmp_path / "peft", format="peft")
    merged = hs.orthogonal.merge([tmp_path / "peft", tmp_path / "own"])
    assert merged.base == read(tmp_path / "own").base
    with pytest.raises(ValueError, match="another base"):
        hs.orthogonal.load_adapter(base(seed=5), merged)


def test_the_newest_format_is_the_one_that_is_read(tmp_path):
    hs.orthogonal.save_adapter(tuned(head=False), tmp_path)
    newer = tuned(seed=2, head=False)
    hs.orthogonal.save_adapter(newer, tmp_path, format="peft")
    close(hs.orthogonal.load_adapter(base(), tmp_path)(X), newer(X))
    hs.orthogonal.save_adapter(tuned(seed=3, head=False), tmp_path)
    close(hs.orthogonal.load_adapter(base(), tmp_path)(X), tuned(seed=3, head=False)(X))


class Nested(nn.Module):
    """A layer whose name is also the end of another one's."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.block = nn.ModuleDict({"fc": nn.ReLU()})
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        return self.head(self.block["fc"](self.fc(x)))


@pytest.mark.filterwarnings("ignore")  # of the libraries
def test_peft_turns_no_more_than_was_turned(tmp_path):
    peft = pytest.importorskip("peft")
    net = Nested().requires_grad_(False)
    plain = copy.deepcopy(net)
    hs.orthogonal.rotate(net, start="identity", blocks=2)
    with torch.no_grad():
        for *_, rotation in rotations(net):
            rotation.map.U.normal_(0, 0.1)
    hs.orthogonal.save_adapter(net, tmp_path, format="peft")
    close(peft.PeftModel.from_pretrained(plain, tmp_path)(X), net(X), scale=10)


@pytest.mark.parametrize("bias", ["all", "oft_only"])
@pytest.mark.filterwarnings("ignore")  # of the libraries
def test_biases_that_peft_has_trained_are_read(bias, tmp_path):
    peft = pytest.importorskip("peft")
    net = Nested()
    plain = copy.deepcopy(net)
    config = peft.OFTConfig(
        target_modules="fc|head", oft_block_size=3, r=0, bias=bias,
        use_cayley_neumann=False, init_weights=False,
    )  # fmt: skip
    theirs = peft.get_peft_model(net, config)
    with torch.no_grad():
        for p in theirs.parameters():
            p.add_(0.1 if p.requires_grad else 0.0)
    theirs.save_pretrained(tmp_path)
    close(hs.orthogonal.load_adapter(plain, tmp_path)(X), theirs(X), scale=10)
