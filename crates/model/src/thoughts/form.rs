//! A form that holds behind thoughts: a model that is made to answer at once answers worse than one that thinks as it learnt to.

use std::sync::Arc;

use super::{Begins, Ids};
use crate::sampling::{Grammar, Guide, Language, SampleError};

/// Maybe thoughts, and then a text of a form.
#[derive(Debug)]
pub(super) struct Behind {
    form: Grammar,
    begins: Begins,
    ids: Ids,
}

impl Behind {
    pub(super) fn grammar(form: Grammar, begins: Begins, ids: Ids) -> Grammar {
        Grammar::new(Arc::new(Behind { form, begins, ids }))
    }
}

impl Language for Behind {
    fn begin(&self) -> Box<dyn Guide> {
        let place = match self.begins {
            Begins::Before => Place::Before,
            Begins::Within => Place::Within,
        };
        Box::new(Walk { form: self.form.begin(), place, ids: self.ids })
    }

    fn bytes(&self) -> usize {
        self.form.bytes()
    }

    fn made_of(&self) -> Option<&Grammar> {
        Some(&self.form)
    }
}

#[derive(Debug)]
struct Walk {
    form: Box<dyn Guide>,
    place: Place,
    ids: Ids,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// At the first token, which may open thoughts.
    Before,
    Within,
    Form,
}

impl Guide for Walk {
    fn mask(&mut self, row: &mut [f32], ends: &[u32], asked: &[u32]) -> Result<(), SampleError> {
        match self.place {
            Place::Before => {
                let opens = row.get(self.ids.opens as usize).copied();
                self.form.mask(row, ends, asked)?;
                if let Some(logit) = opens {
                    row[self.ids.opens as usize] = logit;
                }
                Ok(())
            }
            // Whatever it thinks; but an answer that ended here would not have the form.
            Place::Within => {
                for &id in ends.iter().filter(|id| !asked.contains(id)) {
                    if let Some(logit) = row.get_mut(id as usize) {
                        *logit = f32::NEG_INFINITY;
                    }
                }
                Ok(())
            }
            Place::Form => self.form.mask(row, ends, asked),
        }
    }

    fn accept(&mut self, token: u32) {
        match self.place {
            Place::Before if token == self.ids.opens => self.place = Place::Within,
            Place::Within if token == self.ids.closes => self.place = Place::Form,
            Place::Within => (),
            Place::Before | Place::Form => {
                self.place = Place::Form;
                self.form.accept(token);
            }
        }
    }

    fn end(&mut self) {
        self.place = Place::Form;
        self.form.end();
    }
}
