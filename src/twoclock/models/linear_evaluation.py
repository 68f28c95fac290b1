"""Linear policy evaluation in closed form: the projected Bellman equation, and the asymptotic distribution of estimates
of its solution."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from twoclock.models.mdp import Mdp, States, read_features, read_policies
from twoclock.models.state_chain import Chain, solve_poisson
from twoclock.models.successors import identity, is_sparse, solve_sparse, sparse_chain
from twoclock.protocols import InputError, Scalar, pytree
from twoclock.validation import choice, number, whole
from twoclock.validation.arrays import Array, Number, Vector, as_array

Matrix = Float[np.ndarray, "d d"]
Table = Float[np.ndarray, "s d"]


@pytree
class ProjectedBellman:
    """A θ = b with features Φ and state weights D, and the distance of any θ from its solution.

        A = ΦᵀD(I − (γP)_π)Φ        b = ΦᵀD r_π        C = ΦᵀDΦ
        MSPBE(θ) = (b − Aθ)ᵀ C⁺ (b − Aθ) = ‖Φθ − ΠT_π Φθ‖²_D        RMSVE(θ) = ‖Φθ − V_π‖_D

    θ* is the minimiser of the MSPBE, the shortest one where there are several: A⁻¹b where A has an inverse. ``nearest``
    projects a difference of two θ on the directions that matter, so that ``distance`` is to the nearest minimiser.

    Reference: Sutton et al., *Fast gradient-descent methods for temporal-difference learning*, 2009.
    """

    features: Float[Array, "s d"]
    weights: Float[Array, " s"]
    values: Float[Array, " s"]
    A: Float[Array, "d d"]
    b: Float[Array, " d"]
    C: Float[Array, "d d"]
    whiten: Float[Array, "d d"]  # W with WWᵀ = C⁺
    theta_star: Float[Array, " d"]
    nearest: Float[Array, "d d"]

    def inverse(self, ridge: float = 0.0) -> Float[Array, "d d"]:
        """(C + ridge·I)⁺, which takes b − Aθ to ω*(θ)."""
        xp = self.C.__array_namespace__()
        return self.whiten @ self.whiten.T if ridge == 0 else xp.linalg.inv(self.C + ridge * xp.eye(len(self.C)))

    def residual(self, theta: Vector) -> Vector:
        """b − Aθ, the mean of ρδφ."""
        return jnp.asarray(self.b) - jnp.asarray(self.A) @ theta

    def mspbe(self, theta: Vector) -> Number:
        return jnp.sum(jnp.square(jnp.asarray(self.whiten).T @ self.residual(theta)))

    def half_gradient(self, theta: Vector) -> Vector:
        """−AᵀC⁺(b − Aθ), half the gradient of the MSPBE."""
        W = jnp.asarray(self.whiten)
        return -(jnp.asarray(self.A).T @ (W @ (W.T @ self.residual(theta))))

    def rmsve(self, theta: Vector) -> Number:
        wrong = jnp.asarray(self.features) @ theta - jnp.asarray(self.values)
        return jnp.sqrt(jnp.sum(jnp.asarray(self.weights) * jnp.square(wrong)))

    def distance(self, theta: Vector) -> Number:
        """The squared distance to the nearest minimiser of the MSPBE."""
        return jnp.sum(jnp.square(jnp.asarray(self.nearest) @ (theta - jnp.asarray(self.theta_star))))


def projected_bellman(
    features: Float[Array, "s d"],
    weights: Float[Array, " s"],
    chain: Chain,
    reward: Float[Array, " s"],
    values: Float[Array, " s"],
    lam: Scalar | None = None,
    emphatic: bool = False,
) -> ProjectedBellman:
    """The equation for features Φ, state weights D, the discounted chain (γP)_π, r_π and V_π.

    With λ it is the equation of TD(λ), or of emphatic TD(λ); values are always weighed by the distribution of the
    states.

        T^(λ)V = (I − λP)⁻¹(r + (1 − λ)PV)        P = (γP)_π
        m = λd + (1 − λ)(I − Pᵀ)⁻¹d                the emphasis, instead of the state weights d

    In NumPy or in JAX, whichever the arrays are of; the chain may be a sparse matrix beside arrays of NumPy.

    Reference: Tsitsiklis & Van Roy 1997; Sutton, Mahmood & White, *An emphatic approach to the problem of off-policy
    temporal-difference learning*, 2016.
    """
    xp, law = features.__array_namespace__(), weights
    following = None
    if lam is not None and is_sparse(chain):
        one = identity(len(reward))
        if emphatic:
            law = lam * weights + (1 - lam) * solve_sparse(one - chain.T, np.asarray(weights), "the emphasis")
        ahead = solve_sparse(one - lam * chain, np.column_stack([chain @ features, reward]), "the traces")
        following, reward = (1 - lam) * ahead[:, :-1], ahead[:, -1]
    elif lam is not None:
        one = xp.eye(len(chain))
        resolvent = xp.linalg.inv(one - lam * chain)
        if emphatic:
            law = lam * weights + (1 - lam) * xp.linalg.solve(one - chain.T, weights)
        chain, reward = (1 - lam) * (resolvent @ chain), resolvent @ reward
    weighted = features.T * law[None, :]
    following = chain @ features if following is None else following
    A, b, C = weighted @ (features - following), weighted @ reward, weighted @ features
    small = 10 * len(C) * xp.finfo(C.dtype).eps
    size, axes = xp.linalg.eigh(C)
    kept = size > small * xp.max(size)
    whiten = axes * xp.where(kept, xp.where(kept, size, 1.0) ** -0.5, 0.0)[None, :]
    inverse = xp.linalg.pinv(whiten.T @ A, rtol=10 * small)
    return ProjectedBellman(
        features, weights, values, A, b, C, whiten, inverse @ (whiten.T @ b), inverse @ (whiten.T @ A)
    )


@dataclass(frozen=True, eq=False)
class LimitLaw:
    """√n(θ̄_n − θ*) → N(0, Σ) for every method that reaches the statistical limit of linear policy evaluation.

        g = ρδφ at θ*        S = Σ_l Cov(g_0, g_l) = E[gg ᵀ] + Γ + Γᵀ        Σ = A⁻¹SA⁻ᵀ
        m(s) = E[g|s]        Z = (I − P + 1dᵀ)⁻¹        Γ = E[g(s, a, s') (Zm)(s')ᵀ]

    It is the asymptotic distribution of LSTD and of the averaged iterates of TD, TDC, GTD2, TDRC and their Fast forms.
    At θ* the fast variable is 0, so F and G are both multiples of g (or 0), and ω drops out of the joint linear
    equation.

    Blocks of length ℓ estimate S_ℓ = Var(g_1 + … + g_ℓ)/ℓ instead of S. At ℓ = 1 that is E[ggᵀ], the estimate of
    independent weights for each step; it is S itself where samples are independent or the features can represent V.

    `limit_law` returns it.

    Attributes:
        theta: θ*, the solution of Aθ = b.
        A: E[ρφ(φ − γφ')ᵀ].
        features: Φ, one row per state.
        one_step: E[ggᵀ].
        forward: E[g 1(s')], the score by next state; None where samples are independent.
        chain: the state chain P under the behaviour.
        poisson: Zm, the expected sum of the scores from a state on.
        stationary: d.

    Reference: Kemeny & Snell, *Finite Markov chains*, 1960, for Z; Hu, Doshi & Eun 2024 for TDC and GTD2.
    """

    theta: Float[np.ndarray, " d"]
    A: Matrix
    features: Table
    one_step: Matrix
    forward: Float[np.ndarray, "d s"] | None
    chain: Chain
    poisson: Table
    stationary: States

    def score_covariance(self, block: int | None = None) -> Matrix:
        """S_ℓ, the variance of a sum of ℓ scores over ℓ; S where no block is given."""
        if block is not None:
            whole("block", block, 1)
        if self.forward is None or block == 1:
            return self.one_step
        later = self.poisson
        if block is not None:
            # Σ_{l<ℓ} (1 − l/ℓ)P^{l−1}m = ((ℓ−1)u − P(I − P^{ℓ−1})Zu)/ℓ with u = Zm: no sum over ℓ terms.
            if is_sparse(self.chain):
                raise InputError("`block` must be None or 1 where the table is sparse: a power of its chain is dense")
            rest = self.poisson - np.linalg.matrix_power(self.chain, block - 1) @ self.poisson
            potential = np.eye(len(self.chain)) - self.chain + self.stationary[None, :]
            later = ((block - 1) * self.poisson - self.chain @ np.linalg.solve(potential, rest)) / block
        gamma = self.forward @ later
        return self.one_step + gamma + gamma.T

    def covariance(self, block: int | None = None) -> Matrix:
        """Σ of θ̄, or its estimate by blocks of this length."""
        half = np.linalg.solve(self.A, self.score_covariance(block))
        return np.linalg.solve(self.A, half.T)

    def variance(self, directions: ArrayLike, block: int | None = None) -> Float[np.ndarray, " m"]:
        """cᵀΣc for each row c; the features themselves for the values at the states.

        Args:
            directions: the rows c, each with one entry per feature.
            block: the length of the blocks that estimate Σ; None for Σ itself.
        """
        c = as_array("directions", directions)
        if c.ndim != 2 or c.shape[1] != len(self.theta):
            raise InputError(
                f"`directions` must have one row an output and {len(self.theta)} columns, got the shape {c.shape}"
            )
        return np.einsum("md,de,me->m", c, self.covariance(block), c)

    def half_length(self, directions: ArrayLike, samples: int, level: float = 0.95) -> Float[np.ndarray, " m"]:
        """Half the length of the oracle's interval after ``samples`` samples.

        Args:
            directions: the rows c, each with one entry per feature.
            samples: the number of samples.
            level: the coverage.
        """
        from scipy.special import ndtri

        whole("samples", samples, 1)
        quantile = ndtri((1 + number("level", level, 0, 1, above=True, below=True)) / 2)
        return quantile * np.sqrt(self.variance(directions) / samples)

    def coverage(
        self, directions: ArrayLike, block: int = 1, level: float = 0.95, blocks: int | None = None
    ) -> Float[np.ndarray, " m"]:
        """The coverage of intervals with the variance of blocks of this length, as samples grow at fixed length.

        Args:
            directions: the outputs cᵀθ, one per row.
            block: the length ℓ; 1 for methods that weigh each step separately.
            level: the nominal coverage.
            blocks: the number of blocks for the variance, with the quantile of Student's t; None for infinitely many.
        """
        from scipy.special import ndtr, ndtri, stdtr, stdtrit

        seen = np.sqrt(self.variance(directions, block) / self.variance(directions))
        tail = (1 + number("level", level, 0, 1, above=True, below=True)) / 2
        if blocks is None:
            return 2 * ndtr(ndtri(tail) * seen) - 1
        freedom = whole("blocks", blocks, 2) - 1
        return 2 * stdtr(freedom, stdtrit(freedom, tail) * seen) - 1


def limit_law(
    mdp: Mdp,
    features: ArrayLike,
    target: ArrayLike,
    behaviour: ArrayLike | None = None,
    sampling: str = "iid",
    weights: ArrayLike | None = None,
) -> LimitLaw:
    """The asymptotic distribution of linear policy evaluation; the arguments are those of
    ``problems.policy_evaluation``.

    Args:
        mdp, features, target, behaviour, sampling, weights: as for ``problems.policy_evaluation``.

    >>> import numpy as np
    >>> walk = Mdp(P=np.array([[[0.9, 0.1]], [[0.1, 0.9]]]), r=[[1.0], [0.0]], gamma=0.5)
    >>> law = limit_law(walk, features=np.ones((2, 1)), target=np.ones((2, 1)), sampling="markov")
    >>> law.covariance().round(4).tolist(), law.covariance(block=1).round(4).tolist()
    ([[9.0]], [[1.0]])
    >>> law.coverage([[1.0]]).round(2).tolist()  # of intervals that take the steps for independent
    [0.49]
    """
    choice("sampling", sampling, ("iid", "markov"))
    pi, b, d = read_policies(mdp, target, behaviour, weights, sampling)
    Phi = read_features("features", features, mdp.states)
    if ((pi > 0) & (b == 0)).any():
        raise InputError("`behaviour` must take every action that `target` takes; mix some of the target into it")
    weighted = Phi.T * d
    A = weighted @ (Phi - mdp.discounted_chain(pi) @ Phi)
    if np.linalg.matrix_rank(A) < len(A):
        raise InputError("`features` leave θ undetermined (A = E[ρφ(φ − γφ')ᵀ] is singular); leave out dependent ones")
    theta = np.linalg.solve(A, weighted @ mdp.reward(pi))
    r, values = mdp.r if mdp.r.ndim == 3 else mdp.r[:, :, None], Phi @ theta
    ahead = values if mdp.successors is None else values[mdp.successors]
    delta = r + mdp.gamma * ahead - values[:, None, None]
    rho = np.divide(pi, b, out=np.zeros_like(pi), where=b > 0)
    one_step = np.einsum("sa,sat,sat->s", pi * rho, mdp.P, np.square(delta))  # E[(ρδ)²|s]
    P = mdp.chain(b)
    if mdp.successors is None:
        following = np.einsum("sa,sat,sat->st", pi, mdp.P, delta)  # E[ρδ 1(s')|s]
    else:
        following = sparse_chain(pi[:, :, None] * mdp.P * delta, mdp.successors)
    poisson = drift = Phi * following.sum(axis=1)[:, None]
    if sampling == "markov" and mdp.successors is None:
        poisson = np.linalg.solve(np.eye(len(P)) - P + d[None, :], drift)
    elif sampling == "markov":
        poisson = solve_poisson(P, d, drift)
    forward = weighted @ following if sampling == "markov" else None
    return LimitLaw(theta, A, Phi, (weighted * one_step) @ Phi, forward, P, poisson, d)
