import numpy as np
import numpy.typing as npt

def choose_token(
    row: npt.NDArray[np.float32] | npt.NDArray[np.float64],
    temperature: float,
    min_p: float,
    top_k: int,
    top_p: float,
    seed: int,
    position: int,
    width: int = 64,
) -> tuple[int, float]: ...
def token_distribution(
    row: npt.NDArray[np.float32] | npt.NDArray[np.float64],
    temperature: float,
    min_p: float,
    top_k: int,
    top_p: float,
    width: int = 64,
) -> tuple[npt.NDArray[np.int64] | None, npt.NDArray[np.float64], float]: ...
def token_probability(
    row: npt.NDArray[np.float32] | npt.NDArray[np.float64],
    temperature: float,
    min_p: float,
    top_k: int,
    top_p: float,
    token: int,
    width: int = 64,
) -> tuple[float, float]: ...
def token_noise(seed: int, position: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]: ...
def token_masses(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]: ...
