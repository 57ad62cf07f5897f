//! Dates for `strftime_now`, in UTC: the one thing about the outside that templates may ask.

use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::{Error, ErrorKind};

const DAY_SECONDS: u64 = 24 * 60 * 60;

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

const WEEKDAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// A moment in the calendar.
struct Calendar {
    year: u64,
    /// From 0.
    month: usize,
    /// From 1.
    day: u64,
    day_of_year: u64,
    /// Days since the Thursday on which Unix time begins.
    days: u64,
    second_of_day: u64,
}

impl Calendar {
    fn new(now: SystemTime) -> Self {
        // Clocks before 1970 are broken; the epoch is as good as any answer.
        let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |duration| duration.as_secs());
        let days = seconds / DAY_SECONDS;
        let (mut year, mut day) = (1970, days);
        while day >= year_length(year) {
            day -= year_length(year);
            year += 1;
        }
        let day_of_year = day + 1;
        let mut month = 0;
        while day >= month_length(year, month) {
            day -= month_length(year, month);
            month += 1;
        }
        Self { year, month, day: day + 1, day_of_year, days, second_of_day: seconds % DAY_SECONDS }
    }

    /// What `%code` stands for; `padded` is false for `%-code`.
    fn field(&self, code: char, padded: bool) -> Option<String> {
        let number =
            |value: u64, width: usize| Some(if padded { format!("{value:0width$}") } else { value.to_string() });
        let (hour, minute, second) = (self.second_of_day / 3600, self.second_of_day / 60 % 60, self.second_of_day % 60);
        let weekday = WEEKDAYS[(self.days % 7) as usize];
        match code {
            'Y' => number(self.year, 4),
            'y' => number(self.year % 100, 2),
            'm' => number(self.month as u64 + 1, 2),
            'd' => number(self.day, 2),
            'e' => Some(if padded { format!("{:2}", self.day) } else { self.day.to_string() }),
            'j' => number(self.day_of_year, 3),
            'H' => number(hour, 2),
            'I' => number((hour + 11) % 12 + 1, 2),
            'M' => number(minute, 2),
            'S' => number(second, 2),
            'p' => Some(if hour < 12 { "AM" } else { "PM" }.to_owned()),
            'B' => Some(MONTHS[self.month].to_owned()),
            'b' | 'h' => Some(MONTHS[self.month][..3].to_owned()),
            'A' => Some(weekday.to_owned()),
            'a' => Some(weekday[..3].to_owned()),
            'F' => Some(format!("{:04}-{:02}-{:02}", self.year, self.month + 1, self.day)),
            'T' => Some(format!("{hour:02}:{minute:02}:{second:02}")),
            'Z' => Some("UTC".to_owned()),
            'z' => Some("+0000".to_owned()),
            '%' => Some("%".to_owned()),
            _ => None,
        }
    }
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn year_length(year: u64) -> u64 {
    if is_leap(year) { 366 } else { 365 }
}

fn month_length(year: u64, month: usize) -> u64 {
    match month {
        1 => 28 + u64::from(is_leap(year)),
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    }
}

/// `now` as `strftime` would print it.
pub(super) fn format(now: SystemTime, format: &str) -> Result<String, Error> {
    let calendar = Calendar::new(now);
    let mut text = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        let code = characters.next();
        let (code, padded) = if code == Some('-') { (characters.next(), false) } else { (code, true) };
        let field = code.and_then(|code| calendar.field(code, padded));
        text += &field.ok_or_else(|| {
            Error::new(ErrorKind::InvalidOperation, format!("strftime_now does not know all of {format:?}"))
        })?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn dates_print_as_in_python() {
        let everything = "%Y %y %m %d %e %j %H %I %M %S %p %B %b %A %a %F %T %-d %-m %%";
        for (seconds, expected) in [
            (0, "1970 70 01 01  1 001 00 12 00 00 AM January Jan Thursday Thu 1970-01-01 00:00:00 1 1 %"),
            (951_825_599, "2000 00 02 29 29 060 11 11 59 59 AM February Feb Tuesday Tue 2000-02-29 11:59:59 29 2 %"),
            (1_735_660_805, "2024 24 12 31 31 366 16 04 00 05 PM December Dec Tuesday Tue 2024-12-31 16:00:05 31 12 %"),
            (4_107_542_400, "2100 00 03 01  1 060 00 12 00 00 AM March Mar Monday Mon 2100-03-01 00:00:00 1 3 %"),
        ] {
            assert_eq!(format(UNIX_EPOCH + Duration::from_secs(seconds), everything).unwrap(), expected);
        }
    }

    #[test]
    fn unknown_codes_are_errors() {
        assert!(format(UNIX_EPOCH, "%Q").is_err());
        assert!(format(UNIX_EPOCH, "%").is_err());
        assert!(format(UNIX_EPOCH, "%-").is_err());
    }
}
