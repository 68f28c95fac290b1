"""What the report says beside its numbers (captions, advice) follows from the same records as the verdicts."""

import pytest

import made_up
from reproduction.experiments import bilevel, fig1, fig2, mdp, paper, quadratic, table1, theorems
from reproduction.report import headline
from reproduction.verdicts import kind
from tests.reproduction.test_experiments import cases


def verdict(claims, word):
    (found,) = {claim.verdict for claim in claims if word in claim.name}
    return kind(found)


@pytest.mark.parametrize(
    ("fast", "words", "kind"), [(0.5, "below TDC", "yes"), (1.0, "level with", "no"), (2.0, "above", "no")]
)
def test_figure_1_says_where_fast_ends(fast, words, kind):
    def value(case, method, k):
        return (fast if method == f"{fig1.FAST}, {fig1.PRINTED}" else 1) / (1 + k)

    records = made_up.records(cases("fig1", True), value)
    assert f"With the printed steps Fast TDC ends {words}" in fig1.captions(records)["fig1"]
    assert verdict(fig1.claims(records), "beats TDC with the printed") == kind


@pytest.mark.parametrize(("ratio", "close"), [(1.2, True), (1.4, False)])
def test_averaging_is_advised_where_it_is_close_to_least_squares(ratio, close):
    def value(case, method, k):
        return (ratio if method == f"{fig1.FAST}, {fig1.AVERAGED}" else 1.0) / (1 + k)

    records = made_up.records(cases("fig1", True), value)
    (advice,) = fig1.advice(records)
    assert ("average the iterates." in advice) == close == (verdict(fig1.claims(records), "nearly as good") == "yes")
    assert f"ends at {ratio:.2f} times LSTD's" in advice
    assert "averaging the operators hurts" in advice  # TDC with the same steps ends at 1.00
    assert f"It ends at {ratio:.2f}." in fig1.captions(records)["fig1-efficiency"]


@pytest.mark.parametrize(("standard", "model", "helps"), [(2.0, 0.5, "helps here:"), (1.0, 2.0, "is not what helps")])
def test_mdp_advice(standard, model, helps):
    levels = {mdp.SAME: standard, mdp.RIVAL: model}
    records = made_up.records(cases("mdp", True), lambda case, method, k: levels.get(method, 1.0) / (1 + k))
    advice = " ".join(mdp.advice(records))
    claims = mdp.claims(records)
    assert f"averaging the operators {helps}" in advice
    assert verdict(claims, "beats-same") == ("yes" if standard > 1.1 else "no")
    assert ("counting them is better" in advice) == (verdict(claims, "model-based") == "yes") == (model < 1)
    assert f"{1 / model:g} of {mdp.RIVAL}" in mdp.captions(records)["mdp"]


@pytest.mark.parametrize(("standard", "adds"), [(0.5, "adds to the rate"), (1.0, "adds none")])
def test_table_1_advice(standard, adds):
    """Standard with Fast's exponents has a smaller exponent, or the same."""

    def value(case, method, k):
        return (1.0 + k) ** -(standard if method == table1.ONE else 1.0)

    records = made_up.records(cases("table1", True), value)
    (advice,) = table1.advice(records)
    assert adds in advice
    assert ("two time scales where the coupling is smooth and kinked." in advice) or standard == 1
    assert verdict(table1.claims(records), "averaging") == ("no" if standard == 1 else "yes")
    assert "shows in 0" in table1.captions(records)["table1-1d"]
    assert {verdict(table1.claims(records), f"table1-{h}") for h in table1.ROWS} == {"no"}


def test_table_1_advises_steps_by_what_ends_lower():
    def value(case, method, k):
        return (0.5 if method == (table1.ONE if "kinked" in case else table1.TWO) else 1.0) / (1 + k)

    (advice,) = table1.advice(made_up.records(cases("table1", True), value))
    give = (
        "1/k for both variables where the coupling is kinked and the usual two time scales where the coupling is smooth"
    )
    assert advice.startswith(f"Steps: give the standard method {give}.")


@pytest.mark.parametrize("stable", [True, False])
def test_figure_2_advice(stable):
    """Averaging allows larger steps and the guard helps, or neither; certainty equivalence is better, or worse."""

    def diverged(case, method):
        if case == "map":
            beta, rest = method.split()
            limit = 0.004 if rest == "standard" else 0.002 if rest == str(fig2.LAMBDAS[-1]) else 0.006
            return float(float(beta) > (limit if stable else 0.004))
        return float(stable and case in ("boeing", "bold"))

    def value(case, method, k):
        return (1.0 if method != "certainty equivalence" else 0.1 if stable else 10.0) / (1 + k)

    records = made_up.records(cases("fig2", True), value, diverged)
    advice, claims = " ".join(fig2.advice(records)), fig2.claims(records)
    assert ("worth it for stability" in advice) == (verdict(claims, "stability") == "yes") == stable
    assert ("needs the guard" in advice) == (verdict(claims, "guard") == "yes") == stable
    assert ("estimate it:" in advice) == stable
    assert ("need not be estimated" in advice) != stable
    assert f"{10 if stable else 0.1:g} [" in fig2.captions(records)["fig2"]
    assert ("100% of the seeds diverge without" in fig2.captions(records)["fig2_guard"]) == stable


@pytest.mark.parametrize("holds", [True, False])
def test_a_bound_that_is_broken_is_not_praised(holds):
    def value(case, method, k):
        return (1e-9 if holds else 1e12) / (1 + k)

    records = made_up.records(cases("theorems", True), value)
    caption, advice = theorems.captions(records)["theorems"], " ".join(theorems.advice(records))
    assert caption.count("stays below both bounds") == (3 if holds else 0)
    found = {kind(claim.verdict) for claim in theorems.claims(records) if claim.name.startswith("theorem-")}
    assert found == ({"yes", "partly"} if holds else {"no"})  # no steps meet the printed conditions of Theorem 2
    assert ("compare methods by runs and not by bounds" in advice) == holds
    assert "no closer than" in advice  # both proofs' steps were made to end level


def test_bilevel_and_quadratic_name_the_lowest():
    lowest = {"SOBA", "Standard, Fast's steps"}
    for module, name in ((bilevel, "bilevel"), (quadratic, "quadratic")):
        records = made_up.records(
            cases(name, True), lambda case, method, k: (0.5 if method in lowest else 1.0) / (1 + k)
        )
        caption = module.captions(records)[name]
        assert "SOBA 1, " in caption or "Standard, Fast's steps has the smallest error" in caption
    (advice,) = bilevel.advice(made_up.records(cases("bilevel", True)))
    assert "level with" in advice


def test_the_headline_counts_what_the_tables_show():
    claims = [*paper.claims(made_up.records(cases("paper", True))), *mdp.claims(made_up.records(cases("mdp", True)))]
    papers = [claim for claim in claims if not claim.ours]
    good = sum(kind(claim.verdict) == "yes" for claim in papers)
    assert headline(claims).startswith(f"Of the paper's {len(papers)} claims, {good} are reproduced")
    assert "of the 8 that say Fast is faster, none is reproduced and 8 fail." in headline(claims)
    assert headline([claim for claim in claims if claim.ours]) == "No claim of the paper was tested."
