//! A linear programme as rows, and its solution: by `microlp`, checked against another solver in the tests.

use microlp::{ComparisonOp, OptimizationDirection, Problem};
use serde::Serialize;

/// How a row compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Compare {
    /// At most the right side.
    AtMost,
    /// The right side.
    Equals,
}

/// A constraint.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Variable and factor.
    pub terms: Vec<(usize, f64)>,
    /// How the sum compares with `right`.
    pub compare: Compare,
    /// The right side.
    pub right: f64,
}

/// Variables of at least zero whose weighted sum is to be least.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Programme {
    /// The weight of each variable.
    pub weights: Vec<f64>,
    /// The most that each may be.
    pub most: Vec<Option<f64>>,
    /// Constraints.
    pub rows: Vec<Row>,
}

impl Programme {
    /// Adds a variable; its number.
    pub fn variable(&mut self, weight: f64, most: Option<f64>) -> usize {
        self.weights.push(weight);
        self.most.push(most);
        self.weights.len() - 1
    }

    /// Adds a constraint.
    pub fn row(&mut self, terms: Vec<(usize, f64)>, compare: Compare, right: f64) {
        self.rows.push(Row { terms, compare, right });
    }

    /// The values of the variables at the least sum; nothing where no values satisfy all rows.
    pub fn solve(&self) -> Option<Vec<f64>> {
        let mut problem = Problem::new(OptimizationDirection::Minimize);
        let bounds = self.most.iter().map(|most| (0.0, most.unwrap_or(f64::INFINITY)));
        let variables: Vec<_> = self
            .weights
            .iter()
            .zip(bounds)
            .map(|(&weight, bounds)| problem.add_var(weight, bounds))
            .collect();
        for Row { terms, compare, right } in &self.rows {
            let terms: Vec<_> =
                terms.iter().map(|&(variable, factor)| (variables[variable], factor)).collect();
            let op = match compare {
                Compare::AtMost => ComparisonOp::Le,
                Compare::Equals => ComparisonOp::Eq,
            };
            problem.add_constraint(terms, op, *right);
        }
        let solution = problem.solve().ok()?.into_solution().ok()?;
        Some(variables.into_iter().map(|variable| solution.var_value(variable)).collect())
    }

    /// The weighted sum at these values.
    pub fn sum(&self, values: &[f64]) -> f64 {
        self.weights.iter().zip(values).map(|(weight, value)| weight * value).sum()
    }

    /// By how much these values miss the row or bound that they miss most.
    pub fn miss(&self, values: &[f64]) -> f64 {
        let rows = self.rows.iter().map(|Row { terms, compare, right }| {
            let left: f64 = terms.iter().map(|&(variable, factor)| factor * values[variable]).sum();
            match compare {
                Compare::AtMost => left - right,
                Compare::Equals => (left - right).abs(),
            }
        });
        let bounds = values
            .iter()
            .zip(&self.most)
            .flat_map(|(&value, most)| [-value, most.map_or(f64::NEG_INFINITY, |most| value - most)]);
        rows.chain(bounds).fold(0.0, f64::max)
    }
}
