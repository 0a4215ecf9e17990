//! `strftime_now`: the date in system prompts. The time is given, not read.

use minijinja::{Error, ErrorKind};

/// A moment on someone's wall clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WallClock {
    /// Seconds since 1970, UTC.
    pub unix_s: i64,
    /// What the local clock is ahead of UTC.
    pub utc_offset_s: i32,
}

const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

struct Broken {
    year: i64,
    month: i64,
    day: i64,
    of_year: i64,
    weekday: usize,
    hour: i64,
    minute: i64,
    second: i64,
}

impl WallClock {
    /// Formats as Python's `strftime` in the C locale.
    ///
    /// # Errors
    /// A directive that is none.
    pub fn strftime(self, format: &str) -> Result<String, Error> {
        let at = self.broken_down();
        let mut out = String::new();
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let (bare, directive) = match chars.next() {
                Some('-') => (true, chars.next()),
                other => (false, other),
            };
            let Some(text) = directive.and_then(|d| at.directive(d)) else {
                let why = format!("strftime_now: unknown directive in {format:?}");
                return Err(Error::new(ErrorKind::InvalidOperation, why));
            };
            out.push_str(if bare { unpadded(&text) } else { &text });
        }
        Ok(out)
    }

    fn broken_down(self) -> Broken {
        let local = self.unix_s.saturating_add(i64::from(self.utc_offset_s));
        let (days, s) = (local.div_euclid(86_400), local.rem_euclid(86_400));
        let (year, month, day) = civil(days);
        Broken {
            year,
            month,
            day,
            of_year: days - days_before(year) + 1,
            weekday: days.rem_euclid(7) as usize,
            hour: s / 3600,
            minute: s / 60 % 60,
            second: s % 60,
        }
    }
}

/// Without what fills it up in front; a zero keeps its last digit.
fn unpadded(text: &str) -> &str {
    let bare = text.trim_start_matches(['0', ' ']);
    if bare.is_empty() { &text[text.len().saturating_sub(1)..] } else { bare }
}

impl Broken {
    fn directive(&self, d: char) -> Option<String> {
        let month = MONTHS[(self.month - 1) as usize];
        let weekday = DAYS[self.weekday];
        let hour12 = (self.hour + 11) % 12 + 1;
        let half = if self.hour < 12 { "AM" } else { "PM" };
        // From a Monday on, or from a Sunday on.
        let (from_monday, from_sunday) = ((self.weekday + 3) % 7, (self.weekday + 4) % 7);
        let week = |day: usize| (self.of_year + 6 - day as i64) / 7;
        Some(match d {
            'Y' => self.year.to_string(),
            'C' => format!("{:02}", self.year.div_euclid(100)),
            'y' => format!("{:02}", self.year.rem_euclid(100)),
            'm' => format!("{:02}", self.month),
            'd' => format!("{:02}", self.day),
            'e' => format!("{:2}", self.day),
            'j' => format!("{:03}", self.of_year),
            'B' => month.to_owned(),
            'b' | 'h' => month[..3].to_owned(),
            'A' => weekday.to_owned(),
            'a' => weekday[..3].to_owned(),
            'u' => (from_monday + 1).to_string(),
            'w' => from_sunday.to_string(),
            'U' => format!("{:02}", week(from_sunday)),
            'W' => format!("{:02}", week(from_monday)),
            'V' => format!("{:02}", self.iso_week(from_monday).1),
            'G' => self.iso_week(from_monday).0.to_string(),
            'g' => format!("{:02}", self.iso_week(from_monday).0.rem_euclid(100)),
            'H' => format!("{:02}", self.hour),
            'k' => format!("{:2}", self.hour),
            'I' => format!("{hour12:02}"),
            'l' => format!("{hour12:2}"),
            'M' => format!("{:02}", self.minute),
            'S' => format!("{:02}", self.second),
            'f' => "000000".to_owned(),
            'p' => half.to_owned(),
            'P' => half.to_lowercase(),
            'F' => self.all("Y-m-d")?,
            'D' | 'x' => self.all("m/d/y")?,
            'T' | 'X' => self.all("H:M:S")?,
            'R' => self.all("H:M")?,
            'r' => self.all("I:M:S p")?,
            'c' => self.all("a b e H:M:S Y")?,
            // The time has no zone, as that of transformers has none.
            'z' | 'Z' => String::new(),
            'n' => "\n".to_owned(),
            't' => "\t".to_owned(),
            '%' => "%".to_owned(),
            _ => return None,
        })
    }

    /// Directives, and what stands between them.
    fn all(&self, directives: &str) -> Option<String> {
        let one = |c: char| if c.is_ascii_alphabetic() { self.directive(c) } else { Some(c.to_string()) };
        directives.chars().map(one).collect()
    }

    /// Year and number of the week, which belongs to the year that has its Thursday.
    fn iso_week(&self, from_monday: usize) -> (i64, i64) {
        let thursday = self.of_year + 3 - from_monday as i64;
        let length = |year| days_before(year + 1) - days_before(year);
        let (year, thursday) = match thursday {
            ..=0 => (self.year - 1, thursday + length(self.year - 1)),
            day if day > length(self.year) => (self.year + 1, day - length(self.year)),
            day => (self.year, day),
        };
        (year, (thursday + 6) / 7)
    }
}

/// Days since 1970 to (year, month, day), in eras of 400 years that begin on the first of March.
fn civil(days: i64) -> (i64, i64, i64) {
    let z = days + 719_468;
    let (era, of_era) = (z.div_euclid(146_097), z.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let m = (5 * of_year + 2) / 153;
    let month = if m < 10 { m + 3 } else { m - 9 };
    (era * 400 + year + i64::from(month <= 2), month, of_year - (153 * m + 2) / 5 + 1)
}

/// Days from 1970 to the first of January of `year`.
fn days_before(year: i64) -> i64 {
    let y = year - 1;
    365 * (year - 1970) + (y.div_euclid(4) - y.div_euclid(100) + y.div_euclid(400)) - 477
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(unix_s: i64, utc_offset_s: i32, format: &str) -> String {
        WallClock { unix_s, utc_offset_s }.strftime(format).unwrap()
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(at(0, 0, "%A %d %B %Y %H:%M:%S day %j"), "Thursday 01 January 1970 00:00:00 day 001");
        assert_eq!(at(951_782_400, 0, "%d %b %Y %a %j"), "29 Feb 2000 Tue 060");
        assert_eq!(at(1_735_689_599, 0, "%F %T %I %p %y %j"), "2024-12-31 23:59:59 11 PM 24 366");
        assert_eq!(at(1_735_689_599, 3600, "%F %T %-d %-d %e|%%"), "2025-01-01 00:59:59 1 1  1|%");
        assert_eq!(at(-1, 0, "%F"), "1969-12-31");
        assert_eq!(at(0, 0, "%-H:%-M:%-S %-I"), "0:0:0 12");
        assert_eq!(at(946_684_800, 0, "%-y%-%"), "0%");
    }

    /// As Python has them.
    #[test]
    fn weeks_begin_where_they_begin() {
        for (unix_s, expected) in [
            (0, "4 4 00 00 01 1970 70 19  0 12 am"),
            (951_782_400, "2 2 09 09 09 2000 00 20  0 12 am"),
            (1_735_689_599, "2 2 52 53 01 2025 25 20 23 11 pm"),
            (1_735_689_600, "3 3 00 00 01 2025 25 20  0 12 am"),
            (1_104_537_600, "6 6 00 00 53 2004 04 20  0 12 am"),
            (1_293_840_000, "6 6 00 00 52 2010 10 20  0 12 am"),
            (946_684_800, "6 6 00 00 52 1999 99 20  0 12 am"),
            (-1, "3 3 52 52 01 1970 70 19 23 11 pm"),
            (4_102_444_799, "4 4 52 52 53 2099 99 20 23 11 pm"),
        ] {
            assert_eq!(at(unix_s, 0, "%u %w %U %W %V %G %g %C %k %l %P"), expected, "{unix_s}");
        }
        let all = at(1_735_689_599, 0, "%D|%x|%X|%R|%r|%c|%z%Z|%n%t");
        assert_eq!(all, "12/31/24|12/31/24|23:59:59|23:59|11:59:59 PM|Tue Dec 31 23:59:59 2024||\n\t");
    }

    #[test]
    fn unknown_directives_are_errors() {
        for bad in ["%Q", "%", "%-", "%é"] {
            assert!(WallClock::default().strftime(bad).is_err(), "{bad}");
        }
    }
}
