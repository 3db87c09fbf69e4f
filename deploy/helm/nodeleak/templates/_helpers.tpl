{{/* A file of deploy/, in the namespace of the release: (list $ "base/rbac.yaml") */}}
{{- define "nodeleak.file" -}}
{{- $root := index . 0 -}}
{{- $root.Files.Get (index . 1) | required (printf "the chart lacks %s" (index . 1))
    | replace "namespace: kube-system" (printf "namespace: %s" $root.Release.Namespace)
    | replace "managed-by: kustomize" (printf "managed-by: %s" $root.Release.Service) -}}
{{- end }}

{{/* The same with more labels: (list $ "overlays/prometheus-operator/podmonitor.yaml" .Values.podMonitor.labels) */}}
{{- define "nodeleak.labeled" -}}
{{- $object := include "nodeleak.file" . | fromYaml -}}
{{- range $name, $value := index . 2 }}{{ $_ := set $object.metadata.labels $name $value }}{{ end -}}
{{- toYaml $object -}}
{{- end }}
