//! Budgets and byte counts in the user's words.

use compiler::pipeline::Budget;

/// A byte count for people, as plans print it.
pub use plan::size as bytes;

/// Reads a budget: `4G`, `4GiB` (2^30), `4GB` (10^9), `512M`, `1K`, plain bytes, or `50%` of keep-all.
///
/// # Errors
///
/// A text that says what is accepted.
pub fn budget(text: &str) -> Result<Budget, String> {
    let wrong = || {
        format!(
            "{text:?} is no budget: give bytes such as 4G, 4GiB, 4GB, 512M or a share of keep-all such as 50%"
        )
    };
    let t = text.trim();
    if let Some(share) = t.strip_suffix('%') {
        let share: f64 = share.trim().parse().map_err(|_| wrong())?;
        if !share.is_finite() || share <= 0.0 {
            return Err(wrong());
        }
        return Ok(Budget::OfKeepAll(share / 100.0));
    }
    match whole(t) {
        Some(Ok(0)) | None => Err(wrong()),
        Some(n) => n.map(Budget::Bytes),
    }
}

/// Bytes, which may be none; `None` if that is no number of them.
fn whole(text: &str) -> Option<Result<u64, String>> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let scale: f64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kib" => 1024.0,
        "m" | "mib" => 1048576.0,
        "g" | "gib" => 1073741824.0,
        "t" | "tib" => 1099511627776.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "tb" => 1e12,
        _ => return None,
    };
    let n = number.parse::<f64>().ok()? * scale;
    if !n.is_finite() || n > 0.0 && n < 1.0 {
        return None;
    }
    // Whole byte counts are taken as they are; beyond 2^63 nothing is a budget.
    if n >= 9.2e18 {
        return Some(Err(format!("{text:?} is more than any machine has")));
    }
    Some(Ok(number.parse::<u64>().ok().and_then(|k| k.checked_mul(scale as u64)).unwrap_or(n as u64)))
}

/// A duration for people, in three digits.
pub fn seconds(s: f64) -> String {
    let (scale, unit) = if s < 1e-3 {
        (1e6, "us")
    } else if s < 1.0 {
        (1e3, "ms")
    } else {
        (1.0, "s")
    };
    let x = s * scale;
    let digits = if x < 10.0 {
        2
    } else if x < 100.0 {
        1
    } else {
        0
    };
    format!("{x:.digits$} {unit}")
}

/// Reads a number of bytes as [`budget`] does, without shares; there may be none.
///
/// # Errors
///
/// A text that says what is accepted.
pub fn absolute(text: &str) -> Result<u64, String> {
    match (whole(text.trim()), budget(text)) {
        (Some(n), _) => n,
        (None, Ok(_)) => Err("give bytes here, such as 4G, 512M or 1048576, not a share".to_owned()),
        (None, Err(_)) => Err(format!("{text:?} is no number of bytes: give 4G, 4GiB, 4GB, 512M or 1048576")),
    }
}

/// Reads the bytes of a pool: at least one tensor fits.
///
/// # Errors
///
/// A text that says what is accepted.
pub fn pool(text: &str) -> Result<u64, String> {
    let n = absolute(text)?;
    let least = plan::ALIGNMENT;
    if n < least {
        Err(format!("a pool has at least {least} bytes, and holds what its step needs"))
    } else {
        Ok(n)
    }
}

/// Beyond this a ratio is a slip, and its bytes are more than any machine has.
const MAX_RATIO: f64 = 1e6;

/// Reads a budget as a ratio of a peak.
///
/// # Errors
///
/// A text that says what is accepted.
pub fn ratio(text: &str) -> Result<f64, String> {
    let n = text.parse().ok().filter(|n| (0.0..=MAX_RATIO).contains(n));
    n.ok_or_else(|| "give a ratio such as 0.5; 1 is the whole peak".to_owned())
}

/// Reads a share that is a number of at least 0.
///
/// # Errors
///
/// A text that says what is accepted.
pub fn share(text: &str) -> Result<f64, String> {
    let n = text.parse().ok().filter(|n: &f64| n.is_finite() && *n >= 0.0);
    n.ok_or_else(|| "give a share such as 0.01".to_owned())
}

/// Most threads that are asked for by intent.
const MAX_THREADS: usize = 1024;

/// Reads a number of threads; 0 is one a core.
///
/// # Errors
///
/// A text that says what is accepted.
pub fn threads(text: &str) -> Result<usize, String> {
    let n = text.parse().ok().filter(|n| (1..=MAX_THREADS).contains(n));
    n.ok_or_else(|| {
        format!("give a whole number from 1 to {MAX_THREADS}, or leave the flag out for one a core")
    })
}

/// Reads how many of something, at least one.
///
/// # Errors
///
/// A text that says what is accepted.
pub fn count(text: &str) -> Result<u64, String> {
    let n = text.parse().ok().filter(|n| *n > 0);
    n.ok_or_else(|| "give a whole number, 1 or more, or leave the flag out".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_and_shares_are_numbers() {
        assert_eq!((ratio("0.5"), ratio("0"), share("2")), (Ok(0.5), Ok(0.0), Ok(2.0)));
        for bad in ["nan", "inf", "-1", "", "half"] {
            assert!(ratio(bad).is_err() && share(bad).is_err(), "{bad}");
        }
        assert!(ratio("1e300").is_err());
    }

    #[test]
    fn budgets_are_read() {
        let cases = [
            ("4G", 4 << 30),
            ("4GiB", 4 << 30),
            ("4GB", 4_000_000_000),
            ("1K", 1024),
            ("1.5m", 1_572_864),
            ("12345", 12345),
            ("99999T", 99999 << 40),
        ];
        for (text, n) in cases {
            assert_eq!(budget(text), Ok(Budget::Bytes(n)), "{text}");
        }
        assert_eq!(budget("50%"), Ok(Budget::OfKeepAll(0.5)));
        assert_eq!((absolute("0"), absolute(" 0.0K"), absolute("1.5K")), (Ok(0), Ok(0), Ok(1536)));
        for bad in ["", "0.5", "-0", "50%", "0%", "none", "."] {
            assert!(absolute(bad).is_err(), "{bad}");
        }
        assert!(
            absolute("50%").unwrap_err().contains("share") && pool("0").unwrap_err().contains("at least")
        );
        for bad in ["abc", "", "-1G", "0", "0%", "4X", "%", "1e400G", "nan%", "99999999999T"] {
            assert!(budget(bad).is_err(), "{bad}");
        }
    }
}
