"""Cases that add to a fast case of the same test: they get the marker `slow`.

Each pattern is searched for in the name of a test. What stays in the fast suite has every metric,
every solver and every kind of model at least once; here are further shapes, boundaries and pairs.
"""

SLOW = (
    # the paper's own schemes off the plane, and transport in space on both kinds of boundary
    r"test_metric_against_its_dense_oracle\[(collocated|forward|fourth_order).*-(7|2x3x4)-",
    r"test_metric_against_its_dense_oracle\[(Mobility|Sobolev|HomogeneousSobolev).*-(7|2x3x4)-",
    r"test_metric_against_its_dense_oracle\[Wasserstein-2x3x4-periodic",
    r"test_a_batch_is_independent_functions\[.*-(dirichlet|periodic)\]",
    r"test_a_batch_is_independent_functions\[(collocated|forward|fourth_order)",
    # laws: one family each
    r"test_direction_solves_g_eta_equals_minus_gradient\[mass fixed-",
    r"test_motion_does_not_depend_on_the_parameterisation\[(H1|H-1|dotH1|Mobility|dotH-1)\]",
    r"test_loss_decays_at_the_rate_of_the_projected_gradient\[.*(H1|H-1|Mobility)",
    r"test_every_metric_finds_the_parameters\[(H1|H-1|dotH1|dotH-1|Mobility)\]",
    r"test_reachable_in_every_metric\[.*(H1|H-1|Mobility)",
    # further grids
    r"test_iterative_solves_agree_with_elimination\[shape[02]-False-multigrid",
    r"test_pseudo_inverse_matches_the_dense_one\[shape\d*[13579]-",
    r"test_coarse_operator_is_the_galerkin_product\[.*(1|2)-",
    r"test_cycle_is_symmetric_and_positive\[shape[12]",
    # waves: further ways to store the field
    r"test_born_and_adjoint_are_transposes\[(every [23]|checkpoints|3D|between|no layer)\]",
    r"test_inversion_by_transport",
    r"test_bands_and_a_transport_misfit_come_before_least_squares",
    # pairs of solver and model
    r"test_every_kind_of_model_is_adjoint_and_second_order\[(preconditioned|gmres|host newton)\]",
    r"test_the_direction_is_the_dense_one_on_the_host\[(CG Ny|CG di|LSMR|Rand|Ker)",
    r"test_external.py::test_the_direction_is_the_dense_one\[.*-(W2|H-1)\]",
    r"test_all_agree_with_the_explicit_step_to_first_order\[.*-0.3\]",
    r"test_the_direction_is_that_of_the_dense_hessian\[(gmres|host)\]",
    r"test_a_direction_from_blocks_of_rows_is_the_dense_one\[Kernel-(L2|Sum|Fish)",
    r"test_full_rank\[square-",
    # examples that the documentation runs
    r"test_poisson_5d_runs",
    r"test_burgers_runs",
)
