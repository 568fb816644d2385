class LBFGS:
    pass
