package staging

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseIndex(t *testing.T) {
	x, err := ParseIndex([]byte(`{"metadata":{"total_parameters":7,"total_size":16060522496,"x":[{}]}, "weight_map" : {
		"b":"model-00002-of-00002.safetensors","a":"model-00001-of-00002.safetensors","\u00e9":"sub/model-00001-of-00002.safetensors"},"more":null} `))
	require.NoError(t, err)
	require.EqualValues(t, 16060522496, x.TotalSize)
	require.Equal(t, map[string]string{"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors", "é": "sub/model-00001-of-00002.safetensors"}, x.WeightMap)
	require.Equal(t, []string{"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "sub/model-00001-of-00002.safetensors"}, x.Files())
	for text, want := range map[string]int64{"0": 0, " 12 ": 12, "13476839424.0": 13476839424, "1e3": 1000, "9223372036854775807": 1<<63 - 1} {
		x, err := ParseIndex([]byte(`{"weight_map":{},"metadata":{"total_size":` + text + `}}`))
		require.NoError(t, err)
		require.Equal(t, want, x.TotalSize, text)
		require.Empty(t, x.Files())
	}
}

func TestParseIndexInvalid(t *testing.T) {
	file := func(name string) string { return `{"weight_map":{"a":` + name + `}}` }
	size := func(text string) string { return `{"weight_map":{},"metadata":{"total_size":` + text + `}}` }
	for text, want := range map[string]string{
		``:                                      "'{' is due",
		`[]`:                                    "'{' is due",
		`{}`:                                    "no weight_map",
		`{"weight_map":null}`:                   "'{' is due",
		`{"weight_map":{}`:                      "the JSON ends",
		`{"weight_map":{}} x`:                   "after the end",
		`{"weight_map":{},"weight_map":1}`:      "duplicate key",
		`{"x":1,"x":1}`:                         "duplicate key",
		`{"weight_map":{"a":"f","a":"f"}}`:      "duplicate tensor name",
		`{"weight_map":{"a":"f","\u0061":"f"}}`: "duplicate tensor name",
		`{"weight_map":{},"metadata":{"total_size":1,"total_size":1}}`: "duplicate key",
		`{"weight_map":{},"metadata":[]}`:                              "'{' is due",
		`{"weight_map":{},"x":` + strings.Repeat("[", 1000) + `}`:      "deep",
		"{\"weight_map\":{\"\xff\":\"f\"}}":                            "UTF-8",
		file(`1`):                                                      "a string is due",
		file(`""`):                                                     "not the name of a file",
		file(`"."`):                                                    "not the name of a file",
		file(`"/etc/passwd"`):                                          "not the name of a file",
		file(`"../other"`):                                             "not the name of a file",
		file(`"a/../../other"`):                                        "not the name of a file",
		file(`"a//b"`):                                                 "not the name of a file",
		file(`"..\\other"`):                                            "not the name of a file",
		file(`"c:other"`):                                              "not the name of a file",
		file(`"a\u0000"`):                                              "not the name of a file",
		size(`-1`):                                                     "not negative",
		size(`"1"`):                                                    "not negative",
		size(`null`):                                                   "not negative",
		size(`1.5`):                                                    "not whole",
		size(`1e400`):                                                  "too large",
		size(`9223372036854775808`):                                    "too large",
		size(`01`):                                                     "bad number",
		size(``):                                                       "whole",
	} {
		_, err := ParseIndex([]byte(text))
		require.ErrorIs(t, err, ErrIndex, text)
		require.ErrorContains(t, err, want, text)
	}
}

func TestOpenIndexed(t *testing.T) {
	one, two := randomShard(t, "x", 100, 200), randomShard(t, "y", 300) // tensors xa, xb, and ya
	open := func(m map[string]string) (*Model, error) {
		return OpenIndexed(t.Context(), &Index{WeightMap: m}, func(file string) (Source, error) {
			switch file {
			case "one":
				return fileSource(t, one, 512), nil
			case "two":
				return fileSource(t, two, 512), nil
			case "cut":
				return fileSource(t, one[:20], 4096), nil
			}
			return nil, errMedium
		})
	}
	m, err := open(map[string]string{"xa": "one", "xb": "one", "ya": "two"})
	require.NoError(t, err)
	require.Len(t, m.Shards, 2)
	require.EqualValues(t, 600, m.Plan().Bytes())
	n := 0
	for x, err := range m.Stream(t.Context(), newPool(t, 4, 64<<10), Host{}) {
		require.NoError(t, err)
		x.Release()
		n++
	}
	require.Equal(t, 3, n)
	m, err = open(map[string]string{})
	require.NoError(t, err)
	require.Empty(t, m.Shards)

	for _, c := range []struct {
		index map[string]string
		want  error
		text  string
	}{
		{map[string]string{"xa": "one", "ya": "two"}, ErrIndex, `"one" has tensor "xb", which is not in the index`},
		{map[string]string{"xa": "one", "xb": "two", "ya": "two"}, ErrIndex, `"one" has tensor "xb", which should be in "two"`},
		{map[string]string{"xa": "one", "xb": "one", "ya": "two", "ab": "two", "zb": "two"}, ErrIndex, `"two" does not have tensor "ab"`},
		{map[string]string{"xa": "one", "xb": "one", "ya": "three"}, errMedium, `"three"`},
		{map[string]string{"xa": "cut"}, ErrHeader, `"cut"`},
	} {
		_, err := open(c.index)
		require.ErrorIs(t, err, c.want)
		require.ErrorContains(t, err, c.text)
	}
}

// What is accepted means the same to encoding/json, and takes memory in proportion.
func FuzzParseIndex(f *testing.F) {
	f.Add([]byte(`{"metadata":{"total_size":1e3},"weight_map":{"a":"model-00001-of-00002.safetensors","b\n":"sub/model-00002-of-00002.safetensors"}}`))
	f.Add([]byte(`{"weight_map":{},"metadata":{"x":[1,-2.5e+3,true,false,null,"z"],"total_size":7.0}}`))
	f.Add([]byte(`{"weight_map":{"a":"../../etc/passwd"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var x *Index
		var err error
		used := allocated(func() { x, err = ParseIndex(text) })
		require.Less(t, used, uint64(64*len(text)+8<<10))
		if err != nil {
			require.ErrorIs(t, err, ErrIndex)
			require.Less(t, len(err.Error()), 1000)
			return
		}
		var m map[string]json.RawMessage // not a struct: encoding/json would match other cases of the names too
		require.NoError(t, json.Unmarshal(text, &m))
		var files map[string]string
		require.NoError(t, json.Unmarshal(m["weight_map"], &files))
		require.Equal(t, files, x.WeightMap)
		if x.TotalSize != 0 {
			var metadata map[string]json.RawMessage
			require.NoError(t, json.Unmarshal(m["metadata"], &metadata))
			var size float64
			require.NoError(t, json.Unmarshal(metadata["total_size"], &size))
			require.InEpsilon(t, size, x.TotalSize, 1e-15)
		}
		_, err = OpenIndexed(t.Context(), x, func(string) (Source, error) { return nil, errMedium })
		require.Equal(t, len(files) > 0, errors.Is(err, errMedium), fmt.Sprint(err))
	})
}
