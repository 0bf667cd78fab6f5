"""Exact optima on small graphs, by solvers that share nothing with the planner but the cost of an equation.

    model      a traced program as numbers: what equations cost, read and hold
    play       an order of equations, repeats among them: is it valid, its peak, its seconds
    checkmate  the optimum as an integer linear program (Jain et al. 2020)
    pebbles    the optimum by search through all sets of values that may be in memory
    orders     the orders that schedules of the planner, and rules of others, lead to
    graphs     small JAX functions
    table      the benchmark

Data flows down this list.
"""
