//! Names with `*` (any characters) and `?` (one), as shells have them.

/// Whether `name` is one of those that `pattern` stands for. Takes at most pattern times name steps.
#[must_use]
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    let (mut at, mut place) = (0, 0);
    // Where the last `*` is, and how much of the name it stands for so far.
    let mut star: Option<(usize, usize)> = None;
    while place < name.len() {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at, place));
                at = at.wrapping_add(1);
            }
            Some(&letter) if letter == '?' || letter == name[place] => {
                at = at.wrapping_add(1);
                place = place.wrapping_add(1);
            }
            _ => {
                let Some((starred, until)) = star else {
                    return false;
                };
                star = Some((starred, until.wrapping_add(1)));
                (at, place) = (starred.wrapping_add(1), until.wrapping_add(1));
            }
        }
    }
    pattern[at..].iter().all(|letter| *letter == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As one would define it.
    fn naive(pattern: &[char], name: &[char]) -> bool {
        match (pattern.first(), name.first()) {
            (None, None) => true,
            (Some('*'), _) => {
                naive(&pattern[1..], name) || (!name.is_empty() && naive(pattern, &name[1..]))
            }
            (Some('?'), Some(_)) => naive(&pattern[1..], &name[1..]),
            (Some(one), Some(other)) => one == other && naive(&pattern[1..], &name[1..]),
            _ => false,
        }
    }

    #[test]
    fn patterns_match_what_their_definition_says() {
        let mut texts = vec![String::new()];
        for _ in 0..5 {
            let longer: Vec<String> = texts
                .iter()
                .flat_map(|text| ['a', 'b', '*', '?'].map(|letter| format!("{text}{letter}")))
                .collect();
            texts.extend(longer);
            texts.sort();
            texts.dedup();
        }
        let names: Vec<&String> = texts
            .iter()
            .filter(|text| !text.contains(['*', '?']))
            .collect();
        for pattern in texts.iter().filter(|text| text.len() <= 5) {
            let letters: Vec<char> = pattern.chars().collect();
            for name in &names {
                let other: Vec<char> = name.chars().collect();
                assert_eq!(
                    matches(pattern, name),
                    naive(&letters, &other),
                    "{pattern} {name}"
                );
            }
        }
    }
}
