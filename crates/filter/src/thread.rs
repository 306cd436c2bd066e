//! Jumps that can be decided when the program is made.
use crate::program::Step;

/// The jump targets of a step.
pub(crate) fn targets(step: &mut Step) -> impl Iterator<Item = &mut u32> {
    let (first, second) = match step {
        Step::Field { yes, no, .. } | Step::Compare { yes, no, .. } | Step::Chain { yes, no, .. } => {
            (Some(yes), Some(no))
        }
        Step::Jump { to } => (Some(to), None),
        _ => (None, None),
    };
    first.into_iter().chain(second)
}

pub(crate) fn thread(_steps: &mut Vec<Step>) {}
