package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nvstage/nvstage/queue"
)

// byteSize is a flag value like 4096, 128k or 1M.
type byteSize int

// maxIOSize bounds an I/O, 1 GiB.
const maxIOSize = 1 << 30

func (b *byteSize) Type() string { return "SIZE" }

func (b *byteSize) String() string {
	if *b == 0 {
		return "0"
	}
	return sizeText(int64(*b))
}

func (b *byteSize) Set(s string) error {
	num := strings.TrimRight(strings.ToUpper(s), "IB")
	shift := 0
	if n := len(num); n > 0 {
		if i := strings.IndexByte("KMG", num[n-1]); i >= 0 {
			num, shift = num[:n-1], 10*(i+1)
		}
	}
	n, err := strconv.ParseInt(num, 10, 64)
	if err != nil || n <= 0 || n > maxIOSize>>shift {
		return errors.New("want bytes, like 4096, 128k or 1M, up to 1G")
	}
	*b = byteSize(n << shift)
	return nil
}

// sizeText is a number of bytes for people.
func sizeText(n int64) string {
	for _, u := range []struct {
		name  string
		shift int
	}{{"GiB", 30}, {"MiB", 20}, {"KiB", 10}} {
		if n > 0 && n%(1<<u.shift) == 0 {
			return fmt.Sprintf("%d %s", n>>u.shift, u.name)
		}
	}
	return fmt.Sprintf("%d B", n)
}

// seconds is a flag value like 10, 0.5 or 200ms.
type seconds time.Duration

func (d *seconds) Type() string   { return "SECONDS" }
func (d *seconds) String() string { return time.Duration(*d).String() }

func (d *seconds) Set(s string) error {
	v, err := time.ParseDuration(s)
	if err != nil {
		var f float64
		if f, err = strconv.ParseFloat(s, 64); err == nil && (f < 0 || f > math.MaxInt32) {
			err = strconv.ErrRange
		}
		v = time.Duration(f * float64(time.Second))
	}
	if err != nil || v < 0 {
		return errors.New("want seconds, or a duration like 500ms")
	}
	*d = seconds(v)
	return nil
}

// spin is the flag --spin: nvmetcp.Options.Spin, but 0 is no spinning.
type spin time.Duration

// spinAlways is longer than any run.
const spinAlways = 1000 * time.Hour

func (d *spin) Type() string { return "DURATION" }

func (d *spin) String() string {
	switch v := time.Duration(*d); {
	case v == 0:
		return queue.DefaultSpin.String()
	case v < 0:
		return "0"
	case v >= spinAlways:
		return "always"
	default:
		return v.String()
	}
}

func (d *spin) Set(s string) error {
	v, err := time.ParseDuration(s)
	switch {
	case s == "always":
		v, err = spinAlways, nil
	case err == nil && v == 0:
		v = -1
	}
	if err != nil || v < -1 {
		return errors.New("want a duration like 50us, 0 for never, or always")
	}
	*d = spin(v)
	return nil
}

// driver is the flag --driver.
type driver queue.Driver

func (d *driver) Type() string { return "NAME" }

func (d *driver) String() string {
	if *d == driver(queue.DriverAuto) {
		return "auto"
	}
	return string(*d)
}

func (d *driver) Set(s string) error {
	if strings.EqualFold(s, "auto") {
		*d = driver(queue.DriverAuto)
		return nil
	}
	for _, known := range []queue.Driver{queue.DriverEpoll, queue.DriverURing, queue.DriverConn} {
		if strings.EqualFold(s, string(known)) {
			*d = driver(known)
			return nil
		}
	}
	return fmt.Errorf("want auto, %s, %s or %s", queue.DriverEpoll, queue.DriverURing, queue.DriverConn)
}

// cpuList is a flag value like 1, 2-3, [1,2-3] or the mask 0xe.
type cpuList []int

// maxCPU bounds what a list may name: Linux can be built for 8192.
const maxCPU = 8191

func (l *cpuList) Type() string { return "CPUS" }

func (l *cpuList) String() string {
	s := make([]string, len(*l))
	for i, cpu := range *l {
		s[i] = strconv.Itoa(cpu)
	}
	return strings.Join(s, ",")
}

func (l *cpuList) Set(s string) error {
	list, err := parseCPUs(s)
	if err != nil {
		return err
	}
	*l = list
	return nil
}

func parseCPUs(s string) ([]int, error) {
	var list []int
	if hex, ok := strings.CutPrefix(strings.ToLower(s), "0x"); ok {
		for i := range len(hex) {
			digit, err := strconv.ParseUint(hex[len(hex)-1-i:len(hex)-i], 16, 4)
			if err != nil || 4*i > maxCPU {
				return nil, fmt.Errorf("%q is not a mask of CPUs", s)
			}
			for b := range 4 {
				if digit>>b&1 != 0 {
					list = append(list, 4*i+b)
				}
			}
		}
	} else {
		for part := range strings.SplitSeq(strings.TrimSuffix(strings.TrimPrefix(s, "["), "]"), ",") {
			from, to, isRange := strings.Cut(strings.TrimSpace(part), "-")
			first, err := strconv.Atoi(from)
			last := first
			if err == nil && isRange {
				last, err = strconv.Atoi(to)
			}
			if err != nil || first < 0 || last < first || last > maxCPU {
				return nil, fmt.Errorf("%q: want a list of CPUs like 1,2-3 or a mask like 0xe", s)
			}
			for cpu := first; cpu <= last; cpu++ {
				if slices.Contains(list, cpu) {
					return nil, fmt.Errorf("CPU %d is in the list twice", cpu)
				}
				list = append(list, cpu)
			}
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%q names no CPU", s)
	}
	return list, nil
}
