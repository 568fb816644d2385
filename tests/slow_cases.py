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
    r"test_loss_decays_at_the_rate_of_the_projected_gradient\[.*(H1|H-1|Mobility)",
    r"test_every_metric_finds_the_parameters\[(H1|H-1|dotH1|dotH-1|Mobility)\]",
    r"test_reachable_in_every_metric\[.*(H1|H-1|Mobility)",
    # further grids
    r"test_iterative_solves_agree_with_elimination\[shape[02]-False-multigrid",
    r"test_pseudo_inverse_matches_the_dense_one\[shape\d*[13579]-",
    r"test_coarse_operator_is_the_galerkin_product\[.*(1|2)-",
    r"test_cycle_is_symmetric_and_positive\[shape[12]",
    r"test_iterative_solves_agree_with_elimination\[shape[02]-False-sparse",
    r"test_batches_and_sums_take_the_same_road",
    r"test_error_of_the_information_matrix_is_squared",
    r"test_mass_across_a_vacuum",
    r"test_wasserstein_agrees_with_its_metric_to_order_two\[1-periodic",
    r"test_solutions_filter_the_singular_values\[loop",
    # waves: further ways to store the field
    r"test_born_and_adjoint_are_transposes\[(every [23]|checkpoints|3D|between|no layer)\]",
    r"test_the_born_data_are_the_derivative\[(every|3D|checkpoints)",
    r"test_wave_data.py::test_metric_against_the_dense_oracle\[trace",
    r"test_metrics_on_waves_in_compiled_cg",
    r"test_inversion_by_transport",
    r"test_bands_and_a_transport_misfit_come_before_least_squares",
    # pairs of solver and model
    r"test_every_kind_of_model_is_adjoint_and_second_order\[(preconditioned|gmres|host newton)\]",
    r"test_every_kind_of_model_is_adjoint_and_second_order\[(newton|observed nonlinear|solve)\]",
    r"test_what_the_tangent_space_reaches_vanishes_to_that_order\[Wasserstein",
    r"test_quadratic_convergence_on_a_regularised_problem\[(gmres|host)",
    r"test_every_solver_by_rows_with_an_operator_and_bounds\[.*(SVD|QR)",
    r"test_a_long_memory_beats_lbfgs_per_propagation",
    r"test_the_direction_is_the_dense_one_on_the_host\[(CG Ny|CG di|LSMR|Rand|Ker)",
    r"test_external.py::test_the_direction_is_the_dense_one\[.*-(W2|H-1)\]",
    r"test_all_agree_with_the_explicit_step_to_first_order\[.*-0.3\]",
    r"test_the_direction_is_that_of_the_dense_hessian\[(gmres|host)\]",
    r"test_a_direction_from_blocks_of_rows_is_the_dense_one\[Kernel-(L2|Sum|Fish)",
    r"test_full_rank\[square-",
    # examples that the documentation runs, networks that its pages run
    r"test_poisson_5d_runs",
    r"test_burgers_runs",
    r"test_density_image_runs_and_leaves_less_behind",
    r"test_optimal_transport_runs_and_wins",
    r"test_networks_of_three_libraries\[equinox",
    # the study that is not the paper's, and the longest of the reference runs
    r"test_darcy.py::test_(a_tiny_run|finished_runs|runs_stop|propagations_are|the_posterior_is)",
    r"test_the_prior_as_damping_is_white_damping_in_its_coordinates",
    r"test_levenberg_marquardt_follows_the_reference",
    # shots over devices: test_distributed.py has them in this process and in two
    r"test_shots_on_two_devices_give_the_run_of_one",
    r"test_transforms_in_slabs\[\((4, 8, 3|8,)\)-(neumann|periodic)",
    # the study's own tests descend too, and a study is stopped by Ctrl-C in test_cli.py
    r"test_an_inversion_descends_and_stays_within_its_bounds",
    r"test_a_study_stopped_by_ctrl_c_ends_with_the_same_numbers",
    r"test_(collocated_wasserstein_reaches_the_minimum|staggered_wasserstein_escapes)",
    # further cases
    r"test_a_run_with_little_memory_is_the_run_with_all_of_z\[Sum-Kernel",
    r"test_iterative_solves_agree_with_elimination\[shape1-True-multigrid",
    r"test_networks_of_three_libraries\[dict",
    r"test_point_cloud_runs",
    r"test_a_batch_of_shots_propagates_only_those",
    r"test_blocks_of_rows_in_single_precision",
    r"test_(collocation_points_drawn_anew|a_checkpoint_is_taken_up_by_another_number_of_devices)",
    r"test_wasserstein_metric_by_grid_size\[140",
    r"test_iterations_do_not_grow_with_the_grid\[160",
    r"test_every_metric_gives_the_dense_oracle\[LSMR",
    r"test_a_network_moves_alike_in_other_coordinates",
    r"test_the_distance_on_a_line_is_that_of_transport",
)
