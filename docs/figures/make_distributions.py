"""Draws docs/figures/distributions.png: the digits on the latent sphere of the example VAE."""

import runpy
from pathlib import Path

HERE = Path(__file__).parent

if __name__ == "__main__":
    example = runpy.run_path(str(HERE.parents[1] / "examples" / "hyperspherical_vae.py"))
    example["main"](["--draw", str(HERE / "distributions.png")])
